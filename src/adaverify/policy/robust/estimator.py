"""The robust acceptance estimator: refitted from forgotten counts, mixed over memories, shifted for each request."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

from adaverify.errors import ConfigError
from adaverify.policy.estimator import label_residuals
from adaverify.policy.requests import RequestRows
from adaverify.policy.robust.curve import CalibrationCurve
from adaverify.policy.robust.fit import Prior, newton_step
from adaverify.policy.robust.histogram import COARSE_LOG_ODDS, LOG_ODDS, MARGIN, Axis, LabelHistogram
from adaverify.policy.robust.offsets import RequestOffsets
from adaverify.policy.robust.outcomes import Outcomes, WaitingOutcomes
from adaverify.policy.robust.shifts import GroupShifts


@dataclass(frozen=True)
class Start:
    """Where the fit starts, sampled requests first and greedy ones second.

    Attributes
    ----------
    slopes : tuple of tuple of float, [2][F + 1]
        Of the features, and of the tail that follows from the first.
    intercepts : tuple of float, [2]
    axes : tuple of Axis, [F]
        Bins of the features.
    """

    slopes: tuple[tuple[float, ...], ...]
    intercepts: tuple[float, ...]
    axes: tuple[Axis, ...]


# about .5 x - .2 and .65 x - .55, as fitted on one public pair (vLLM pull request 52228), with the tails of our pairs
STANDARD = Start(((0.4, 0.25), (0.6, 0.1)), (-0.37, -0.62), (LOG_ODDS,))
# log-odds and margin, as fitted on small pairs of ours
COUPLED = Start(((0.45, 0.2, 0.0), (0.45, 0.2, 0.0)), (-0.7, -0.7), (COARSE_LOG_ODDS, MARGIN))
# before anything was predicted a request counts as certain, as in the paper: so there are labels from the first step
INIT_CONFIDENCE = 1.0


class RobustEstimator:
    """Predict the acceptance of each draft, and learn from every verification, whatever the traffic.

    ``p_i = sigmoid(slope * (f_i + u) + tail * t_i + intercept_i + v)`` with f the log-odds of q_max, u an offset of the
    request, ``t = -log(1 - q_max)``, and v what keeps the mean right; further features have slopes of their own. Last
    comes a curve that keeps the shape right. The log-odds alone have one slope for ``log q_max`` and
    ``-log(1 - q_max)``: where drafts are all but certain, sampled requests accept more than that says (beta
    calibration [1]_).

    Sampled and greedy requests have coefficients of their own. What keeps it alive where the published estimator
    dies: labels are kept as forgotten counts, so that each fit is the mode of a posterior whose curvature belongs to
    its own predictions, not to those of the past; steps are bounded; what has no labels falls back to the other
    positions, and these to the prior. Several memories are fitted side by side and mixed by how well each has
    predicted lately: a long one for steady traffic, a short one for sudden change. Memory is O(K).

    Parameters
    ----------
    num_speculative_tokens : int
        K, drafts per request and round.
    num_slots : int
        Requests that run at once at most.
    start_at : Start
        ``STANDARD`` for features of shape [R, K], the log-odds of q_max; ``COUPLED`` for [R, K, 2], with the margins.
    device : torch.device or str
    refit_interval : int
        Steps between two Newton steps, once it has taken as many.
    horizons : tuple of float
        Memories, in labels of a group.
    offset_deviation, offset_memory : float
        See :class:`~adaverify.policy.robust.offsets.RequestOffsets`; a deviation of 0 switches offsets off.
    loss_memory : float
        Labels over which memories are compared.
    shift_memory : float
        Labels over which the mean is kept right; see :class:`~adaverify.policy.robust.shifts.GroupShifts`.
    curve_memory : float
        Labels over which the shape is kept right; see :class:`~adaverify.policy.robust.curve.CalibrationCurve`.

    Attributes
    ----------
    slopes : Tensor, shape [G, H, F + 1], float64
        Of the features and of the tail.
    all_intercepts : Tensor, shape [G, H, K], float64
    losses : Tensor, shape [G, H], float64
        Forgotten log-loss of each memory, in nats.
    confidence : Tensor, shape [G, K], float64
        Running mean of the predictions, by position.
    num_refits : int

    Raises
    ------
    ConfigError
        A parameter is out of range.

    References
    ----------
    .. [1] M. Kull, T. Silva Filho and P. Flach, "Beta calibration", AISTATS 2017.
    """

    # offsets move after every step
    steps_ahead = 1

    def __init__(
        self,
        num_speculative_tokens: int,
        num_slots: int,
        start_at: Start = STANDARD,
        device: torch.device | str = "cpu",
        refit_interval: int = 10,
        horizons: tuple[float, ...] = (1000.0, 8000.0, 64000.0),
        offset_deviation: float = 0.6,
        offset_memory: float = 50.0,
        loss_memory: float = 500.0,
        shift_memory: float = 1000.0,
        curve_memory: float = 8000.0,
    ) -> None:
        for name, value, valid in (
            ("num_speculative_tokens", num_speculative_tokens, num_speculative_tokens >= 1),
            ("num_slots", num_slots, num_slots >= 1),
            ("refit_interval", refit_interval, refit_interval >= 1),
            ("horizons", horizons, len(horizons) >= 1 and min(horizons, default=0) >= 1),
            ("offset_deviation", offset_deviation, offset_deviation >= 0),
            ("offset_memory", offset_memory, offset_memory > 0),
            ("loss_memory", loss_memory, loss_memory >= 1),
            ("shift_memory", shift_memory, shift_memory >= 1),
            ("curve_memory", curve_memory, curve_memory >= 1),
        ):
            if not valid:
                raise ConfigError(f"{name} is {value}; the robust estimator needs a larger one")
        self.num_speculative_tokens = K = num_speculative_tokens
        self.refit_interval = refit_interval
        self.loss_memory = loss_memory
        G, H = len(start_at.intercepts), len(horizons)
        self.prior = Prior(
            slopes=torch.tensor(start_at.slopes, dtype=torch.float64, device=device)[:, None],
            intercept=torch.tensor(start_at.intercepts, dtype=torch.float64, device=device)[:, None],
        )
        self.slopes = self.prior.slopes.repeat(1, H, 1)
        self.all_intercepts = self.prior.intercept[..., None].repeat(1, H, K)
        self.losses = torch.zeros_like(self.all_intercepts[..., 0])
        self.labels = LabelHistogram(G, K, horizons, start_at.axes, len(start_at.slopes[0]), device)
        self.offsets = RequestOffsets(num_slots, offset_deviation, offset_memory, device)
        self.shifts = GroupShifts(G, shift_memory, device)
        self.curve = CalibrationCurve(curve_memory, device)
        self.confidence_weight = torch.zeros_like(self.all_intercepts[:, 0])
        self.confidence = torch.full_like(self.confidence_weight, INIT_CONFIDENCE)
        self.num_refits = 0
        self._waiting = WaitingOutcomes()
        self._steps_since_refit = 0

    @property
    def weights(self) -> Tensor:
        """How much each memory counts, shape [G, H]: by its likelihood over the last labels."""
        return torch.softmax(-self.losses, dim=-1)

    @property
    def slope(self) -> Tensor:
        """Slope of the law at even log-odds, in the group with most labels, 0-dim."""
        slope: Tensor = (self._mixed_slope + self._mixed_tail / 2).take(self._busiest)
        return slope

    @property
    def intercepts(self) -> Tensor:
        """Log-odds of acceptance at even log-odds of the draft, in the group with most labels, shape [K]."""
        mixed = (self.weights[..., None] * self.all_intercepts).sum(dim=1)
        at_even = mixed + (self._mixed_tail * math.log(2) + self.shifts.shift)[:, None]
        return self.curve.correct_scores(at_even.index_select(0, self._busiest.view(1))[0])

    @property
    def _mixed_slope(self) -> Tensor:
        """Slope of the log-odds alone, shape [G]."""
        return (self.weights * self.slopes[..., 0]).sum(dim=-1)

    @property
    def _mixed_tail(self) -> Tensor:
        """Slope of the tail, shape [G]."""
        return (self.weights * self.slopes[..., -1]).sum(dim=-1)

    @property
    def _busiest(self) -> Tensor:
        return self.labels.counts[:, -1].sum(dim=(-1, -2)).argmax()

    def start(self, slots: Tensor) -> None:
        """New requests have these slots, shape [N]: nothing is known of them but their group."""
        self.offsets.start(slots)

    def expected(self, greedy: Tensor) -> Tensor:
        """Confidences of a request that has none yet, shape [N, K], from ``greedy``, shape [N]: their running mean."""
        return self.confidence[greedy.long()].float()

    def predict(self, features: Tensor, requests: RequestRows | None = None) -> Tensor:
        """Give acceptance probabilities, shape [R, K], of features, shape [R, K] or [R, K, F]."""
        group, offset = self._group_and_offset(len(features), requests)
        chances = self._by_memory(self._inputs(features, 2), offset, group, self.all_intercepts)
        return self.curve.correct((self.weights[group][..., None] * chances).sum(dim=1)).to(features.dtype)

    def predict_at(self, features: Tensor, position: int, requests: RequestRows | None = None) -> Tensor:
        """Give acceptance probabilities, shape [R], of features, shape [R] or [R, F], all of one position (from 0)."""
        group, offset = self._group_and_offset(len(features), requests)
        own = self.all_intercepts[..., position : position + 1]
        chances = self._by_memory(self._inputs(features, 1)[:, None], offset, group, own)
        return self.curve.correct((self.weights[group] * chances[..., 0]).sum(dim=1)).to(features.dtype)

    def observe(
        self,
        features: Tensor,
        predictions: Tensor,
        num_admitted: Tensor,
        num_accepted: Tensor,
        mask: Tensor | None = None,
        requests: RequestRows | None = None,
    ) -> None:
        """Take in the outcome of one verification; see :meth:`OnlineAcceptanceEstimator.observe`.

        Parameters
        ----------
        features : Tensor, shape [R, K] or [R, K, F]
        predictions : Tensor, shape [R, K]
            Both as they were when the drafts were made.
        num_admitted, num_accepted : Tensor, shape [R], integer
        mask : Tensor, shape [R], bool, optional
            Requests whose labels count; all by default.
        requests : RequestRows, optional
            By default sampled requests of which nothing is known.
        """
        # The law is fitted to the features alone: were offsets in its scores, a change common to all requests would be
        # taken for one of theirs.
        features = self._inputs(features, 2)
        usable = features.isfinite().all(dim=-1)
        known, p, residual = label_residuals(usable, predictions, num_admitted, num_accepted, None)
        labelled = known if mask is None else known & mask[:, None]
        group, offset = self._group_and_offset(len(features), requests)
        accepted, information = known & (residual > 0), p * (1 - p)
        if requests is not None:
            # what says nothing of other requests still says something of its own
            slope = self._mixed_slope[group]
            telling = torch.ones_like(requests.greedy) if mask is None else mask
            self.offsets.observe(requests.slot, slope, information.sum(dim=1), residual.sum(dim=1), telling)
        told = predictions if mask is None else predictions.where(mask[:, None], torch.nan)
        self._waiting.add(Outcomes(features, told, labelled, accepted, information, residual, group, offset))
        if self._waiting.are_enough:
            self._learn()

    def end_step(self) -> None:
        """Count one engine step and refit when ``refit_interval`` of them have passed, at first after 1, 2, 3, ..."""
        self._steps_since_refit += 1
        # sooner at first: nothing is known yet, and a step may bring hundreds of labels
        if self._steps_since_refit >= min(self.refit_interval, self.num_refits + 1):
            self.refit()

    def refit(self) -> None:
        """Take one bounded Newton step in every group and memory."""
        self._learn()
        labels = self.labels
        self.slopes, self.all_intercepts = newton_step(
            self.slopes, self.all_intercepts, labels.counts, labels.accepted, labels.means, self.prior
        )
        self._steps_since_refit = 0
        self.num_refits += 1

    def state_dict(self) -> dict[str, Any]:
        """Everything learned about the traffic, as copies; what is known of single requests ends with them."""
        self._learn()
        return {name: tensor.clone() for name, tensor in self._state.items()} | {"num_refits": self.num_refits}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned, in place.

        Raises
        ------
        ConfigError
            A key is missing or a tensor has another shape, as from another ``num_speculative_tokens``.
        """
        own = self._state
        missing = [name for name in (*own, "num_refits") if name not in state]
        if missing:
            raise ConfigError(f"estimator state lacks {', '.join(missing)}; pass what state_dict() returned")
        for name, tensor in own.items():
            if state[name].shape != tensor.shape:
                raise ConfigError(
                    f"estimator state: {name} has shape {tuple(state[name].shape)}, but num_speculative_tokens = "
                    f"{self.num_speculative_tokens} needs {tuple(tensor.shape)}"
                )
        self._waiting.take()
        for name, tensor in own.items():
            tensor.copy_(state[name])
        self.num_refits = int(state["num_refits"])

    def _learn(self) -> None:
        """Take in the outcomes that wait, all but what they say of single requests."""
        outcomes = self._waiting.take()
        if outcomes is None:
            return
        self._score_memories(outcomes)
        self.shifts.observe(outcomes.group, *outcomes.of_labels)
        self.curve.observe(outcomes.predictions, outcomes.labelled, outcomes.residual)
        self.labels.add(outcomes.features, outcomes.labelled, outcomes.accepted, outcomes.group)
        self._remember_confidence(outcomes.predictions, outcomes.group)

    @property
    def _state(self) -> dict[str, Tensor]:
        """The tensors that hold what was learned about the traffic, by the names they are kept under."""
        return {
            "slopes": self.slopes,
            "all_intercepts": self.all_intercepts,
            "losses": self.losses,
            "confidence": self.confidence,
            "confidence_weight": self.confidence_weight,
            "labels": self.labels.sums,
            "shift": self.shifts.shift,
            "shift_information": self.shifts.information,
            "curve": self.curve.corrections,
            "curve_information": self.curve.information,
        }

    def _group_and_offset(self, num_rows: int, requests: RequestRows | None) -> tuple[Tensor, Tensor]:
        if requests is None:
            device = self.slopes.device
            return torch.zeros(num_rows, dtype=torch.long, device=device), torch.zeros(num_rows, device=device)
        return requests.greedy.long(), self.offsets.of(requests.slot)

    def _inputs(self, features: Tensor, dim: int) -> Tensor:
        """Features along their own axis, which a single one may come without, and the tail behind them."""
        features = features if features.dim() > dim else features.unsqueeze(-1)
        return torch.cat((features, softplus(features[..., :1])), dim=-1)

    def _by_memory(self, features: Tensor, offset: Tensor, group: Tensor, intercepts: Tensor) -> Tensor:
        """Chances by each memory, shape [R, H, k].

        Of features, shape [R, k, F], offsets, shape [R], and intercepts, shape [G, H, k].
        """
        slopes = self.slopes[group]
        shift = slopes[..., 0] * offset[:, None] + self.shifts.shift[group][:, None]
        scores = (slopes[:, :, None] * features[:, None]).sum(dim=-1)
        return torch.sigmoid(scores + shift[..., None] + intercepts[group])

    def _score_memories(self, outcomes: Outcomes) -> None:
        """Forget a little of each memory's loss and add that of these labels, predicted before they are learned."""
        labelled, group = outcomes.labelled, outcomes.group
        finite = torch.where(labelled[..., None], outcomes.features, 0.0)
        chances = self._by_memory(finite, outcomes.offset, group, self.all_intercepts)
        right = torch.where(outcomes.accepted[:, None], chances, 1 - chances).clamp(min=1e-6)
        loss = torch.where(labelled[:, None], -right.log(), 0.0).sum(dim=-1)
        labels = torch.zeros_like(self.losses[:, 0]).index_add_(0, group, labelled.double().sum(dim=1))
        self.losses *= torch.exp(-labels / self.loss_memory)[:, None]
        self.losses.index_add_(0, group, loss)

    def _remember_confidence(self, predictions: Tensor, group: Tensor) -> None:
        """Move the running mean of the predictions: a plain mean at first, then over the last of them."""
        known = predictions.isfinite()
        zeros = torch.zeros_like(self.confidence)
        count = zeros.index_add(0, group, known.double())
        total = zeros.index_add(0, group, torch.where(known, predictions, 0.0).double())
        self.confidence_weight.mul_(torch.exp(-count / self.loss_memory)).add_(count)
        self.confidence += (total - count * self.confidence) / self.confidence_weight.clamp(min=1.0)
