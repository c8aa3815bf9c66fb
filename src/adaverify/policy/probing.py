"""When to draft and verify everything, only to see: on a schedule that costs a fixed share of the time."""

from __future__ import annotations

from adaverify.errors import ConfigError

PROBE_SHARE = 0.0025


class ProbeSchedule:
    """Says which steps are probes, so that what is not drafted, or not verified, can still be learned of.

    Every step saves up a share of its expected time; a probe is due when its price has been saved. So probes take at
    most that share of the time, whatever they cost. The schedule follows from expected costs, which are chosen from
    stale confidences: it never looks at the drafts of the step.

    Parameters
    ----------
    share : float
        Of the time, 0 (never) to 1.

    Raises
    ------
    ConfigError
        ``share`` is out of range.
    """

    def __init__(self, share: float = PROBE_SHARE) -> None:
        if not 0 <= share <= 1:
            raise ConfigError(f"share is {share}; probes need a share of the time from 0 to 1")
        self.share = share
        self._saved = 0.0

    def is_due(self, price: float, step_cost: float) -> bool:
        """Count a step, and say whether it shall be a probe.

        Parameters
        ----------
        price : float
            Milliseconds to draft and verify everything, beyond a step without drafts.
        step_cost : float
            Milliseconds the step is expected to take otherwise.
        """
        # no more than one probe is saved up, lest many follow each other when they get cheaper
        self._saved = min(self._saved + self.share * step_cost, price)
        if not 0 < price <= self._saved:
            return False
        self._saved = 0.0
        return True
