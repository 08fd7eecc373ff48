"""Writes what a local job leaves in its run folder: the operator's events, rank 0's steps and starts."""

import json
import math

SAMPLES = 32
LAUNCHED = 1_700_000_000.0


class Job:
    """A job whose clock stands still until it is moved. Two processes a node.

    Args:
        run_dir: Its run folder.
        launched: Seconds since the epoch.
    """

    def __init__(self, run_dir, *, launched=LAUNCHED, nodes=1, sizes=(1, 2, 3, 4)):
        run_dir.mkdir(parents=True, exist_ok=True)
        self.run_dir = run_dir
        self.now = launched
        self.attempt = -1
        self.step = self.cursor = 0
        self.nodes = []
        self.event("launched", nodes=nodes, sizes=list(sizes), message=f"launched on {nodes}")

    def append(self, name, **fields):
        with (self.run_dir / name).open("a") as file:
            file.write(json.dumps(fields) + "\n")

    def event(self, kind, after_s=0.0, message="", **fields):
        self.now += after_s
        self.append("events.jsonl", time=self.now, kind=kind, message=message, **fields)
        return self.now

    def start(
        self, nodes, *, step=None, reports=True, has_first_step=True, parts=(2.0, 3.0, 0.5, 0.4, 0.2), **fields
    ):
        """Order a start on `nodes`, resume from `step` and, unless it does not come that far, train a step."""
        self.attempt += 1
        self.nodes = list(nodes)
        if step is not None:
            self.cursor -= (self.step - step) * SAMPLES
            self.step = step
        resumed = {"step": self.step, "cursor": self.cursor}
        self.event("starting", attempt=self.attempt, nodes=self.nodes, size=len(self.nodes))
        if not reports:
            return
        marks = [self.now + sum(parts[: i + 1]) for i in range(5)]
        self.now = marks[3]
        if has_first_step:
            self.train(1, seconds=parts[4])
            self.event("running", 0.2, attempt=self.attempt, size=len(self.nodes), step=self.step)
        names = ("spawned", "imported", "joined", "restored", "first_step")
        told = dict(zip(names, marks, strict=True)) | ({} if has_first_step else {"first_step": None})
        self.append("starts.jsonl", attempt=self.attempt, **self.size, **told, **resumed, **fields)

    def save(self, tier="training_dir"):
        """Publish a checkpoint of the steps done, of which tiers do not record the samples."""
        cursor = {"cursor": self.cursor} if tier == "training_dir" else {}
        self.append(
            "checkpoints.jsonl", time=self.now, event="saved", step=self.step, tier=tier, seconds=0.4, **cursor
        )

    def train(self, steps, *, seconds=0.2, data_s=0.0):
        """Train `steps` steps, of `seconds` each, of which rank 0 waits `data_s` for its data."""
        for _ in range(steps):
            self.now += seconds
            self.step += 1
            self.cursor += SAMPLES
            loss = (
                2.2 + 3.3 * math.exp(-self.step / 45) + 0.06 * math.sin(self.step * 2.4) * math.cos(self.step * 0.7)
            )
            self.append(
                "metrics.jsonl", step=self.step, loss=loss, learning_rate=0.003, samples_per_s=SAMPLES / seconds,
                samples=SAMPLES, time=self.now, attempt=self.attempt, cursor=self.cursor, data_s=data_s,
                **self.size,
            )  # fmt: skip

    @property
    def size(self):
        return {"world_size": 2 * len(self.nodes), "nodes": len(self.nodes)}

    def decide(self, reason, to_nodes, cause_time, after_s=0.0):
        """Decide; `cause_time` is when the operator saw the cause, a little after it came."""
        fields = {"from_nodes": len(self.nodes), "to_nodes": to_nodes, "cause_time": cause_time}
        self.event("transition", after_s, message=f"{reason} to {to_nodes}", reason=reason, **fields)

    def stop(self, *, graceful=True, saved=True, seconds=0.9):
        self.event("stopping", nodes=self.nodes, attempt=self.attempt, graceful=graceful)
        self.event("stopped", seconds, attempt=self.attempt, saved=saved)

    def end(self, state="succeeded", after_s=1.5, **fields):
        self.event("ended", after_s, message=state, state=state, exit_code=0, **fields)


def grow(job, to_nodes, message):
    """Add nodes gracefully: pre-warmed while training goes on."""
    came = job.event("scenario", message=message)
    job.decide("scale-up", to_nodes, came + 0.01, 0.3)
    new = [node for node in range(10) if node not in job.nodes][: to_nodes - len(job.nodes)]
    job.event("spawned", nodes=new)
    job.train(12)
    job.event("prewarmed", nodes=new)
    job.stop()
    job.start([*job.nodes, *new])


def shrink(job, to_nodes, message):
    """Give nodes back gracefully."""
    job.decide("scale-down", to_nodes, job.event("scenario", message=message), 0.2)
    job.stop(seconds=1.2)
    job.event("dropped", 0.1, nodes=job.nodes[to_nodes:])
    job.start(job.nodes[:to_nodes])


def lose(job, node, message, *, checkpoint, replaced_by=None):
    """Lose a node for good, or until `replaced_by` stands in; go on from the step of `checkpoint`."""
    job.event("scenario", message=message, fault=True)
    seen = job.now + 0.6
    job.event("fault", 0.601, node=node, cause="its agent ended", message=f"node {node}: its agent ended")
    job.decide("recover", len(job.nodes), seen, 1.0)
    job.stop(graceful=False, saved=False, seconds=0.7)
    left = [each for each in job.nodes if each != node]
    if replaced_by is not None:
        job.event("spawned", nodes=[replaced_by])
        job.now += 3.1
        job.start([*left, replaced_by], step=checkpoint)
    else:
        job.decide("scale-down", len(left), seen)
        job.start(left, step=checkpoint)


def rehearse(run_dir, **options):
    """Write the course 1 -> 2 -> 3 -> (node lost) 2 -> 3 -> (crash) 3 -> 1, with a shadow of earlier launches."""
    job = Job(run_dir, **options)
    job.event("spawned", nodes=[0])
    job.now += 2.8
    job.start([0], parts=(1.6, 3.4, 0.3, 0.1, 0.4))
    job.train(29)
    grow(job, 2, "capacity becomes 2 nodes")
    job.train(20)
    grow(job, 3, "capacity becomes 3 nodes")
    job.train(26)
    lose(job, 1, "node 1 is lost", checkpoint=80)
    job.train(16)
    grow(job, 3, "node 1 comes back")
    job.train(18)
    lose(job, 2, "rank 4 crashes", checkpoint=120, replaced_by=4)
    job.train(24)
    shrink(job, 1, "a higher-priority job arrives")
    job.train(30)
    job.event("unfired", message="capacity becomes 4 nodes (step 900)")
    job.end()
    return job
