"""Train the same fleet alone and with AS-FedBridge, and compare. Two ANN and two SNN clients, handwritten digits."""

import asfedbridge as afb

FLEET = "2*vgg9@0.125:ann,2*vgg9@0.125:snn"


def main() -> None:
    for method in ("standalone", "as-fedbridge"):
        # The keys are those of the command line: asfedbridge run smoke method=standalone rounds=2 ...
        spec = afb.recipe("smoke", method=method, fleet=FLEET, rounds=2, optimiser__lr_ann=0.05, seed=1)
        result = afb.run(spec)  # engine="pool" trains the clients in worker processes
        print(f"{method}: {result.accuracy}")
        for client in result.clients:
            print(f"  client {client.id}, {client.kind}: {client.accuracy:.1f} % of {client.test} test images")
        print(f"  {len(result.rounds)} records in {result.folder / 'rounds.jsonl'}")
    again = afb.load(result.folder)  # a finished run needs nothing but its folder
    assert again.accuracy == result.accuracy


if __name__ == "__main__":
    main()
