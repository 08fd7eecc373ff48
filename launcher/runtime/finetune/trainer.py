"""The open trainer: data, model and technique of a fine-tuning recipe, in the loop that any script can use."""

import functools
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from launcher.common import names
from launcher.runtime import agent, in_place, process_group
from launcher.runtime.finetune import export, parallel
from launcher.runtime.finetune.architectures import architecture_of
from launcher.runtime.finetune.batches import Batcher, ahead, layer_masks
from launcher.runtime.finetune.data.prepared import Prepared
from launcher.runtime.finetune.inputs import Inputs, inputs_of, prepared_data
from launcher.runtime.finetune.loading import loader_of
from launcher.runtime.finetune.model_card import facts_of, tags_of
from launcher.runtime.finetune.models import adamw, built, compute_dtype, trained_parameters
from launcher.runtime.finetune.objectives import Objective, Preference, Supervised, uniform_reference
from launcher.runtime.finetune.reference import Precomputed, dealt, without_adapters
from launcher.runtime.finetune.schedules import learning_rate
from launcher.runtime.finetune.settings import Settings, settings_of
from launcher.runtime.finetune.token_scores import TokenScorer
from launcher.runtime.hooks import Hooks
from launcher.runtime.job import Job
from launcher.runtime.process_group import Place, print_once
from launcher.runtime.recipe_training import resume, step_optimizer
from launcher.runtime.reporting import StepMetrics, reporter_of
from launcher.runtime.sampler import StepSampler
from launcher.runtime.stop_consensus import any_rank

_KEPT: list[tuple[nn.Module, TokenScorer]] = []
"""The model of this process, and what scores tokens with it: one, or none. It trains on after a change of size."""


def run(
    config: Mapping[str, Any],
    place: Place,
    run_dir: Path,
    *,
    rehearse: bool,
    model: str = "",
    samples: int | None = None,
) -> None:
    """Train `config`, the compiled recipe of this number of ranks, to its end, or to the next scale event.

    Args:
        place: Of this process, which has joined the process group.
        run_dir: Receives metrics, prepared data, checkpoints and results, where the recipe names no other folder.
        rehearse: Whether a small model with random weights takes the place of the recipe's, and made-up samples that
            of its data.
        model: The published model to rehearse, where the recipe names none.
        samples: How many samples a rehearsal makes up; None for the default.
    """
    settings = settings_of(config, place.world_size)
    inputs = inputs_of(config, settings, run_dir, rehearse=rehearse, model=model, samples=samples)
    FineTuning(settings, inputs, place, run_dir).run()


class FineTuning:
    """Trains one recipe on this rank's part of the samples; without `data`, the samples of `inputs` are prepared."""

    def __init__(
        self,
        settings: Settings,
        inputs: Inputs,
        place: Place,
        run_dir: Path,
        data: Prepared | None = None,
        event_pending: Callable[[], bool] = agent.event_pending,
    ):
        self.settings, self.inputs, self.place, self.run_dir = settings, inputs, place, run_dir
        self._event_pending = event_pending
        if inputs.is_rehearsal:
            print_once("rehearsal: a small model with random weights, and made-up samples")
        export.refuse_foreign(inputs.results)  # before hours of training, not after them
        self.data = data or prepared_data(inputs, is_node_first=place.local_rank == 0)
        print_once(*self.data.lines())
        self.model, self.root = self._kept_model() or self._new_model()
        batcher = Batcher(place.device, self._packs(), layer_masks(self.model, compute_dtype(place.device)))
        self.objective: Objective[Any, Any] = self._objective(batcher)
        self.optimizer = adamw(self.model, settings.optimizer, place.device)
        tracking = settings.tracking
        self.reporter = reporter_of(run_dir, tracking.uri, tracking.run_id) if place.rank == 0 else None
        if self.reporter:
            self.reporter.describe(tags_of(self.model, settings, inputs, self.data))
        self.job = self._job()
        total = self.job.sampler.total_samples
        self._schedule = settings.optimizer.schedule.over(settings.shares.samples_per_step / total)
        self._phases = _Phases(place.device, is_used=settings.logs_phases)
        self._sums: torch.Tensor | None = None
        self._last: StepMetrics | None = None

    def _new_model(self) -> tuple[nn.Module, nn.Module]:
        """Return a model with its initial weights, and its root, set up for the ranks."""
        settings, inputs, place = self.settings, self.inputs, self.place
        model, remarks = built(inputs.config, settings, place.device, has_weights=inputs.weights is not None)
        print_once(*remarks)
        if settings.parallel.recomputes:
            parallel.recompute(model)
        scorer = TokenScorer(model, settings.aux_loss_coef)
        root = parallel.spread(scorer, model, settings.parallel, place, loader_of(model, settings, inputs, place))
        _KEPT.clear()
        # A reference that has to be computed again needs the model as it was before training.
        has_reference = settings.preference is not None and not settings.model.lora
        if in_place.is_on() and not has_reference and not parallel.plan_for(model, settings.parallel, place).mesh:
            _KEPT.append((model, scorer))
        return model, root

    def _kept_model(self) -> tuple[nn.Module, nn.Module] | None:
        """Return the model of the attempt before in this process, if it is complete and may be so at this size."""
        for model, scorer in _KEPT:
            plan = parallel.plan_for(model, self.settings.parallel, self.place)
            if not plan.mesh:
                return model, parallel.exchanged(scorer, plan)
        return None

    def _packs(self) -> bool:
        """Return whether samples share a row."""
        can = architecture_of(self.inputs.config).packs
        if self.settings.packs and not can:
            print_once("packing_samples: this architecture carries its state from sample to sample; rows are padded")
        return self.settings.packs and can

    def _objective(self, batcher: Batcher) -> Objective[Any, Any]:
        settings = self.settings
        if settings.preference is None:
            return Supervised(batcher)
        if settings.preference.reference_free:
            return Preference(batcher, settings.preference, uniform_reference)
        if settings.model.lora:
            return Preference(batcher, settings.preference, without_adapters(self.root))
        reference = Precomputed(self.root, batcher, self.data, settings, self.inputs)
        return Preference(batcher, settings.preference, reference, reference.prepare)

    def _job(self) -> Job:
        settings, shares, saving = self.settings, self.settings.shares, self.settings.saving
        sampler = StepSampler(
            len(self.data.train),
            shares.samples_per_step,
            settings.max_epochs,
            seed=settings.seed,
            micro_batch_size=shares.micro,
            per_rank=shares.per_rank,
        )
        epoch = math.ceil(len(self.data.train) / shares.samples_per_step)
        steps = math.ceil(sampler.total_samples / shares.samples_per_step)
        return Job(
            self.root,
            self.optimizer,
            sampler=sampler,
            folder=Path(saving.folder) if saving.folder else self.run_dir / names.CHECKPOINT_DIR,
            save_every=saving.steps_between(epoch),
            keep=saving.keep,
            max_bytes=saving.max_gb * 1e9,
            tiers=settings.tiers,
            reporter=self.reporter,
            on_step=self._print_step,
            event_pending=self._event_pending,
            hooks=Hooks(
                evaluate=self._evaluate if self.data.validation else None,
                evaluate_every=steps if settings.eval_steps == 0 else max(settings.eval_steps, 0),
                evaluate_epochs=settings.eval_steps < 0,
                export=self._export,
            ),
            max_skipped_steps=settings.max_skipped_steps,
        )

    def run(self) -> bool:
        """Train to the end, or to the next scale event; return whether training is finished.

        In both cases a published checkpoint holds all work when this returns.
        """
        if not self.objective.prepare(lambda: any_rank(self._event_pending())):
            print_once("stopped before the first step, as requested")
            return False
        self._resume()
        self.root.train()
        lengths = self.objective.lengths(self.data.train)
        began = time.monotonic()
        for rows in self.job.steps(self._batches()):
            parallel.exchange_between_nodes(self.root, self.job.completes_step)
            with self._phases.part("forward"):
                outcome = self.objective.outcome(self.root, self.data.train, rows)
                loss = self.objective.weighed(outcome, self.data.train, self.job)
            with self._phases.part("backward"):
                torch.autograd.backward(loss)
            if self.job.batch.positions:
                self._sums = outcome.sums if self._sums is None else self._sums + outcome.sums
            if self.job.completes_step:
                self._update(self.job.step_sum(lengths), began)
                began = time.monotonic()
        if not self.job.finished:
            print_once(f"stopped at step {self.job.step} as requested")
            return False
        if not self.settings.saving.saves_state:
            process_group.barrier()  # a rank that fails from here on makes all of them train again
            self.job.checkpoints.clear()
        print_once(f"finished at step {self.job.step}{self._last_loss()}")
        return True

    def _resume(self) -> None:
        saving = self.settings.saving
        resume(
            self.job,
            self.reporter,
            seed=self.settings.seed,
            resumes=saving.resumes,
            overrides=saving.overrides,
            start=saving.resume_path,
        )

    def _batches(self) -> Iterator[Any]:
        """Yield the rows of this rank's batches, which are made while the batches before them train."""
        make = functools.partial(self.objective.rows, self.data.train)
        yield from ahead(self.job.sampler, make, self.place.device)

    def _update(self, tokens: float, began: float) -> None:
        with self._phases.part("optimizer"):
            limit = self.settings.optimizer.max_norm
            norm = nn.utils.clip_grad_norm_(trained_parameters(self.model), limit or math.inf)
            step_optimizer(self.job, functools.partial(learning_rate, self._schedule), norm)
        self.job.report(grad_norm=norm, tokens_per_s=tokens / (time.monotonic() - began), **self._phases.take())
        self.job.report(self._step_metrics())
        if self.job.step == 0:
            self.job.report(self.data.counts.metrics())
        if self.settings.logs_memory and self.place.device.type == "cuda":
            self.job.report(memory_gb=torch.cuda.max_memory_allocated() / 1e9)

    def _step_metrics(self) -> Mapping[str, float]:
        """Return the technique's own metrics of the step, of all ranks together."""
        sums, self._sums = self._sums, None
        if self.objective.num_sums == 2:  # loss and count: the job reports the loss
            return {}
        own = torch.zeros(self.objective.num_sums, dtype=torch.float64) if sums is None else sums.cpu()
        found = self.objective.metrics(process_group.summed(own))
        return {name: value for name, value in found.items() if name != "loss"}

    def _evaluate(self) -> Mapping[str, object] | None:
        """Return the technique's metrics on the validation samples; None if training has to stop. Collective."""
        sums = torch.zeros(self.objective.num_sums, dtype=torch.float64, device=self.place.device)
        samples = cast(Sized, self.data.validation)
        self.root.eval()
        try:
            with torch.no_grad():
                for indices, is_filler in dealt(len(samples), self.settings.shares.micro):
                    if self.job.stopping():
                        return None
                    rows = self.objective.rows(samples, indices)
                    outcome = self.objective.outcome(self.root, samples, rows)
                    sums += 0 if is_filler else outcome.sums  # nothing waits for it
        finally:
            self.root.train()
            parallel.reshard(self.root)
        found = self.objective.metrics(process_group.summed(sums.cpu()))
        print_once("evaluation  " + "  ".join(f"{name} {value:.4f}" for name, value in found.items()))
        return {f"eval/{name}": value for name, value in found.items()}

    def _export(self) -> None:
        facts = facts_of(self.settings, self.inputs, self.run_dir, data=self.data, steps=self.job.step)
        export.write(self.model, self.settings, self.inputs, facts)
        print_once(f"results  {self.inputs.results}")

    def _print_step(self, metrics: StepMetrics) -> None:
        self._last = metrics
        if metrics.step % self.settings.logging_steps == 0 and metrics.loss is not None:
            print_once(
                f"step {metrics.step}/{metrics.step + self.job.sampler.steps_left}{self._last_loss()}  "
                f"lr {metrics.learning_rate:.3g}  {metrics.further['tokens_per_s']:.0f} tokens/s  "
                f"world {metrics.world_size}"
            )

    def _last_loss(self) -> str:
        return "" if self._last is None or self._last.loss is None else f"  loss {self._last.loss:.4f}"


class _Phases:
    """Adds up how long the parts of a step take, over its micro batches, if it `is_used`.

    The work of the device is waited for at the borders, which costs speed.
    """

    def __init__(self, device: torch.device, *, is_used: bool):
        self._is_used, self._device = is_used, device
        self._times_s: defaultdict[str, float] = defaultdict(float)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the time of the body to that of the part `name`."""
        if not self._is_used:
            yield
            return
        began = self._now()
        yield
        self._times_s[name] += self._now() - began

    def take(self) -> Mapping[str, float]:
        """Return the seconds of each part since the last call, by the name of the metric; empty if not measured."""
        found = {f"time/{name}_s": seconds for name, seconds in self._times_s.items()}
        self._times_s.clear()
        return found

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
