"""Options of the commands that use trained clients: predict, evaluate, export."""

from asfedbridge.cli.arguments import Commands, add_trained, client_id, path, positive

TRAINED_HELP = "folder of a finished run, state folder of a node, or client file"
CLIENT_HELP = "client id; required if there are several clients"
FUSED_HELP = "fuse the predictions of backbone and Bridge, with the client's own weight"


def add_predict(commands: Commands) -> None:
    predict = commands.add_parser(
        "predict",
        help="classify images, or event recordings, with a trained client",
        epilog="example: asfedbridge predict runs/mine --client 5 photos/ one.png",
    )
    predict.add_argument("folder", type=path, metavar="RUN|STATE_DIR|FILE", help=TRAINED_HELP)
    predict.add_argument(
        "images", nargs="+", metavar="IMAGE", help="files, or folders of files; resized as in training"
    )
    predict.add_argument("--client", type=client_id, metavar="ID", help=CLIENT_HELP)
    predict.add_argument("--fused", action="store_true", help=FUSED_HELP)
    predict.add_argument("--top", type=positive, default=1, metavar="K", help="show the K most probable classes")
    predict.add_argument("--json", action="store_true", help="print a JSON list, with all probabilities, on stdout")
    add_trained(predict)


def add_evaluate(commands: Commands) -> None:
    evaluate = commands.add_parser(
        "evaluate",
        help="evaluate trained clients on any data (default: each client on every client's test images)",
        epilog="example: asfedbridge evaluate runs/mine --data npz:mine.npz",
    )
    evaluate.add_argument("folder", type=path, metavar="RUN|STATE_DIR|FILE", help=TRAINED_HELP)
    evaluate.add_argument("--data", metavar="SOURCE", help="evaluate on the test images of this source")
    evaluate.add_argument("--client", type=client_id, metavar="ID", help="only this client")
    evaluate.add_argument("--fused", action="store_true", help=FUSED_HELP)
    evaluate.add_argument("--json", action="store_true", help="print everything as JSON on stdout")
    add_trained(evaluate)


def add_export(commands: Commands) -> None:
    export = commands.add_parser(
        "export",
        help="export a trained client to torch, ONNX or NIR, with a model card",
        epilog="example: asfedbridge export runs/mine --client 5 --format nir --out client5.nir --verify",
    )
    export.add_argument("folder", type=path, metavar="RUN|STATE_DIR|FILE", help=TRAINED_HELP)
    export.add_argument("--client", type=client_id, metavar="ID", help=CLIENT_HELP)
    export.add_argument("--out", type=path, metavar="FILE", required=True, help=".pt2, .safetensors, .onnx or .nir")
    export.add_argument(
        "--format", choices=["torch", "onnx", "nir"], help="file format (default: from the suffix of --out)"
    )
    export.add_argument("--bridge", action="store_true", help="export the client's Bridge instead of its backbone")
    export.add_argument(
        "--verify", action="store_true", help="run the file in other runtimes on real images; exit code 1 on a mismatch"
    )
    export.add_argument(
        "--data", metavar="SOURCE", help="images for --verify and the model card (default: the run's data)"
    )
    export.add_argument(
        "--json", action="store_true", help="print the model card and the differences as JSON on stdout"
    )
    add_trained(export)
