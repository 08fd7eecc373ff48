"""What a job does where its workers stay: it takes over the state that ranks have kept, and leaves its own."""

from launcher.runtime import in_place, neighbours, peers, process_group, startup_timing
from launcher.runtime.checkpoint_folder import Progress
from launcher.runtime.content import Content
from launcher.runtime.reporting import StepMetrics
from launcher.runtime.rows import Parts
from launcher.runtime.stop_consensus import any_rank


class Stay:
    """One attempt of a job in a process that outlives it.

    Attributes:
        taken: What the attempt continues with; None for a checkpoint.
    """

    def __init__(self, content: Content):
        self._content = content
        self._copies = neighbours.Neighbours()
        self._handed: Parts = {}
        self.taken: peers.Taken | None = None

    def take_over(self) -> peers.Taken | None:
        """Return what the ranks continue with; None, and say why, if they need a checkpoint. Collective."""
        try:
            self.taken, reason = peers.take_over(self._content), "no rank has kept its state"
        except peers.NotHealed as error:
            reason = str(error)
            in_place.forget()
        size = process_group.world_size()
        if found := self.taken:
            moved = f", {found.num_receivers} received {found.num_bytes / 1e6:,.1f} MB" if found.num_receivers else ""
            process_group.print_once(
                f"continuing at step {found.progress.step}: {found.num_holders} of {size} ranks kept it{moved}"
            )
        elif startup_timing.attempt():
            process_group.print_once(f"{reason}: all continue at the newest checkpoint")
        return self.taken

    def copy_if_due(self, progress: Progress, last: StepMetrics | None) -> None:
        """Copy the state of a step to the neighbours, as often as the recipe says. Collective."""
        if self._copies.is_due(progress.step):
            self._copies.copy(self._content, progress, last)

    def leaves_state(self, *, is_postponed: bool) -> bool:
        """Return whether ranks that stay keep the state, so that a stop needs no checkpoint. Collective.

        What only leaving ranks have is handed to those that stay.

        Args:
            is_postponed: Whether the last steps were skipped, so that the state must not be saved yet.
        """
        if any_rank(not in_place.is_resize() or is_postponed):
            return False
        if not self._content.is_replicated:
            try:
                self._handed = peers.hand_over(self._content, leaves=in_place.is_leaving())
            except peers.NotHealed as error:
                process_group.print_once(f"{error}: a checkpoint is saved")
                return False
        return True

    def left(self, progress: Progress, last: StepMetrics | None, *, is_complete: bool) -> tuple[peers.Kept, ...]:
        """Return what this rank keeps for the next attempt, the newest first.

        Args:
            is_complete: Whether its state is that of `progress`: no step has begun to change it.
        """
        alone = self._content.alone()
        live = peers.kept(alone, progress, last, self._handed) if alone and is_complete else None
        return (live, *self._copies.copies) if live else (*self._copies.copies,)
