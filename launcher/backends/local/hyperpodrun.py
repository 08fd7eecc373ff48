"""`hyperpodrun`, startable with any torch.

torch 2.12 gave torchrun an option `--shutdown-timeout`, which the agent defines as well; argparse
refuses the second. Here the agent's own replaces torchrun's, which the agent does not read.
"""

import sys

from hyperpod_elastic_agent.run import add_additional_hyperpod_args, register_hyperpod_rendezvous, run
from torch.distributed.run import get_args_parser


def main(argv: list[str] | None = None) -> None:
    """Run the agent with hyperpodrun's command line.

    Source: hyperpod_elastic_agent 1.1.3, run.py: main.
    """
    register_hyperpod_rendezvous()
    parser = get_args_parser()
    for container in (parser, parser._optionals):
        container.conflict_handler = "resolve"
    add_additional_hyperpod_args(parser)
    run(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
