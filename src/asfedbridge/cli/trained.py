"""Commands that use trained clients: `predict`, `evaluate` and `export`."""

import argparse
import json
import sys
from typing import Any

from asfedbridge.cli.terminal import DONE, FAILED, tell
from asfedbridge.core import BadInput, printable


def command_predict(args: argparse.Namespace) -> int:
    from asfedbridge.report.evaluations import count_images, prediction_rows
    from asfedbridge.report.tables import render_text

    client = _open_client(args)
    classes = client.card.classes
    found = client.predict(args.images, args.fused, count_images(sys.stderr))
    if args.json:
        print(
            json.dumps(
                [
                    {"image": name, "label": int(label), "class": text, "probabilities": row.tolist()}
                    for name, label, text, row in zip(
                        found.inputs, found.labels, found.names, found.probabilities, strict=True
                    )
                ]
            )
        )
    else:
        print(render_text(prediction_rows(found, classes, min(args.top, len(classes)))))
    return DONE


def _open_client(args: argparse.Namespace) -> Any:
    """The trained client selected by the arguments."""
    from asfedbridge.runs import load, load_client

    if not args.checkpoint:
        return load_client(args.folder, args.client, trust=args.trust)
    found = load(args.folder, checkpoint=True, trust=args.trust, data_root=args.data_root).clients
    if args.client is None or args.client >= len(found):
        raise BadInput(f"--client {args.client}: {args.folder} has no such client; it has 0 to {len(found) - 1}")
    return found[args.client].trained


def command_evaluate(args: argparse.Namespace) -> int:
    from asfedbridge.data import data_root
    from asfedbridge.report.evaluations import evaluation_tables
    from asfedbridge.report.tables import render_titled
    from asfedbridge.runs import evaluate_run

    found = evaluate_run(
        args.folder,
        tell,
        data=args.data,
        client=args.client,
        fused=args.fused,
        checkpoint=args.checkpoint,
        data_root=data_root(args.data_root),
        trust=args.trust,
    )
    parts = [render_titled(table, markdown=False) for table in evaluation_tables(found)]
    parts += [f"written: {printable(str(found.file))}"] if found.file else []
    print("\n\n".join(parts), file=sys.stderr if args.json else sys.stdout)
    if args.json:
        print(json.dumps(found.entries))
    return DONE


def command_export(args: argparse.Namespace) -> int:
    client = _open_client(args)
    written = client.export(
        args.out,
        format=args.format,
        bridge=args.bridge,
        verify=args.verify,
        data=args.data,
        data_root=args.data_root,
    )
    lines = [f"written: {printable(str(file))}" for file in written.files]
    lines += [f"rewritten: {line}" for line in written.card.get("rewritten", [])]
    for name, outcome in written.outcomes.items():
        parts = [] if outcome.difference is None else [f"largest difference in logits {outcome.difference:.2g}"]
        parts += [outcome.note] if outcome.note else []
        lines.append(f"{name}: {'; '.join(parts)}{' (MISMATCH)' if outcome.mismatch else ''}")
    print("\n".join(lines), file=sys.stderr if args.json else sys.stdout)
    if args.json:
        verified = {name: outcome._asdict() for name, outcome in written.outcomes.items()}
        print(json.dumps({**written.card, "verified": verified}))
    return FAILED if any(outcome.mismatch for outcome in written.outcomes.values()) else DONE
