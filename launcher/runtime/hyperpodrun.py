"""`hyperpodrun`, startable with any torch, which gives its workers `--shutdown-timeout` to end.

torch 2.12 gave torchrun an option `--shutdown-timeout`, which the agent defines as well; argparse
refuses the second. Here the agent's own replaces torchrun's, which the agent does not read. That torch also has
30 s of its own between SIGTERM and SIGKILL, which it hands to the agent as if they were asked for.
"""

import sys

from hyperpod_elastic_agent.elastic_agent.hyperpod_elastic_agent import HyperPodElasticAgent
from hyperpod_elastic_agent.run import add_additional_hyperpod_args, register_hyperpod_rendezvous, run
from torch.distributed.run import get_args_parser


def main(argv: list[str] | None = None) -> None:
    """Run the agent with hyperpodrun's command line.

    Source: hyperpod_elastic_agent 1.1.3, run.py: main; torch.distributed.elastic.agent.server.api,
    SimpleElasticAgent, which sets `_shutdown_timeout`.
    """
    register_hyperpod_rendezvous()
    parser = get_args_parser()
    for container in (parser, parser._optionals):
        container.conflict_handler = "resolve"
    add_additional_hyperpod_args(parser)
    args = parser.parse_args(argv)
    HyperPodElasticAgent._shutdown_timeout = property(lambda _: args.shutdown_timeout, lambda *_: None)
    run(args)


if __name__ == "__main__":
    sys.exit(main())
