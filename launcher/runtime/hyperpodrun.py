"""`hyperpodrun` for any version of torch; its workers have `--shutdown-timeout` to exit.

Since torch 2.12, torchrun has an option `--shutdown-timeout`, which the agent defines, too; argparse refuses the
second definition. Here the agent's option replaces torchrun's, which the agent does not read. That torch also passes
the agent its own default of 30 s between SIGTERM and SIGKILL as if it had been requested.
"""

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
    timeout = property(lambda _: args.shutdown_timeout, lambda *_: None)
    setattr(HyperPodElasticAgent, "_shutdown_timeout", timeout)  # noqa: B010 a property where torch has an int
    run(args)


if __name__ == "__main__":
    main()
