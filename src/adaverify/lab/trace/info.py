"""What one recorded run was: kept in every file of its trace."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, ValidationError

from adaverify.errors import TraceError
from adaverify.lab.trace.schema import METADATA_KEY, SCHEMA_VERSION, SCHEMAS
from adaverify.policy.cost import CostTable


class RunInfo(BaseModel):
    """The run behind a trace.

    Attributes
    ----------
    run : str
        Names the run's files and tells it from others in the same folder.
    target, drafter : str
        Names, without folders.
    method : str
        Drafting method, as in ``--speculative-config``.
    num_speculative_tokens : int
        K.
    max_num_seqs : int
        Seats of the engine.
    knows_q_before_draw : bool
        Whether the drafter knows all distributions of a block before any draw (DFlash alone).
    drafts_in_parallel : bool
        Whether a block is drafted in one pass, so that its depth must be chosen before it.
    draft_sample_method, rejection_sample_method : str
    trimmed : bool
        False where every draft was verified (``--no-trim``): labels then reach up to the first rejection.
    confidence : str
        Where ``prediction`` comes from: ``head`` or ``estimator``.
    costs : dict, optional
        The cost table measured at start, as :meth:`~adaverify.policy.cost.CostTable.to_dict`; with ``live_costs`` the
        run trimmed by what its steps made of it.
    started : str
        UTC, ISO 8601.
    versions : dict of str to str
        Of adaverify, torch and transformers.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    run: str
    target: str
    drafter: str
    method: str
    num_speculative_tokens: int
    max_num_seqs: int
    knows_q_before_draw: bool
    drafts_in_parallel: bool
    draft_sample_method: str = "probabilistic"
    rejection_sample_method: str = "standard"
    trimmed: bool = True
    confidence: str = "estimator"
    costs: dict[str, Any] | None = None
    started: str = ""
    versions: dict[str, str | None] = {}
    schema_version: int = SCHEMA_VERSION

    @property
    def is_coupled(self) -> bool:
        """Whether drafts were verified by coupled sampling, under which no choice of drafts changes the text."""
        return self.rejection_sample_method == "coupled"

    @property
    def budget_may_wait(self) -> bool:
        """Whether the budget of a block may depend on the block itself, as in the engine."""
        return self.is_coupled or self.knows_q_before_draw

    @property
    def cost_table(self) -> CostTable | None:
        """The costs measured at start."""
        return None if self.costs is None else CostTable.from_dict(self.costs)

    def attach(self, kind: str) -> pa.Schema:
        """The schema of ``drafts`` or ``steps`` with this run in its metadata."""
        return SCHEMAS[kind].with_metadata({METADATA_KEY: self.model_dump_json().encode()})

    @classmethod
    def read(cls, schema: pa.Schema, where: str) -> RunInfo:
        """The run in a file's metadata.

        Raises
        ------
        TraceError
            The file is not a trace, or of another schema version.
        """
        text = (schema.metadata or {}).get(METADATA_KEY)
        if text is None:
            raise TraceError(f"{where}: not a trace of adaverify; give folders written by `adaverify record`")
        try:
            values = _mapping(text)
            version = values.get("schema_version")
            if version != SCHEMA_VERSION:
                age = "older" if isinstance(version, int) and version < SCHEMA_VERSION else "newer"
                raise TraceError(
                    f"{where}: trace of schema version {version}, {age} than version {SCHEMA_VERSION} that this "
                    "adaverify reads; record it again, or use the adaverify that wrote it"
                )
            return cls.model_validate(values)
        except TraceError:
            raise
        except (ValidationError, ValueError) as error:
            raise TraceError(f"{where}: the description of its run is damaged ({error}); record it again") from error


def _mapping(text: bytes) -> dict[str, Any]:
    values = json.loads(text)
    if not isinstance(values, dict):
        raise ValueError("not a JSON object")
    return values
