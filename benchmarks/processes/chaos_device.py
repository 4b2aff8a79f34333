"""A device of `bench chaos`: the command `fedwright`, whose agent can be made to wait at the moments of its work."""

import sys

from fedwright.benchmarks.processes.chaos_moments import Moments
from fedwright.cli.main import main as command
from fedwright.device_runtime.agent import Agent
from fedwright.device_runtime.secure.sums import SecureSums
from fedwright.device_runtime.store.journal import Journal
from fedwright.protocol.uploads import Uploads


def _has_answered(agent: Agent) -> bool:
    entry = agent._have.journal.entry
    return entry is not None and entry.answer is not None


def _is_training(agent: Agent) -> bool:
    return agent._work is not None and not agent._work.done()


def main() -> int:
    """`fedwright` with moments."""
    moments = Moments.of_environment()
    moments.after(Journal, "accept", "task taken")
    moments.before(Agent, "_take_chunk", "fetching")
    moments.before(Agent, "_tend", "training", when=_is_training)
    moments.before(Agent, "_finish_work", "trained")
    moments.before(Uploads, "answer", "uploading")
    moments.after(Agent, "_send_reply", "update sent", when=_has_answered)
    moments.before(Agent, "_take_ack", "acknowledged")
    moments.before(SecureSums, "answer", "sum asked")
    moments.after(SecureSums, "answer", "sum answered")
    return command()


if __name__ == "__main__":
    sys.exit(main())
