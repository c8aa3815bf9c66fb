"""The columns of a trace, version by version; ``docs/traces.md`` is their description for readers."""

from __future__ import annotations

import pyarrow as pa

SCHEMA_VERSION = 1
METADATA_KEY = b"adaverify"

ACCEPTED, REJECTED, UNOBSERVED = 1, 0, -1

# One row a draft, in the order (step, request, position).
DRAFT_SCHEMA = pa.schema(
    [
        ("step", pa.int64()),
        ("request", pa.int64()),
        ("position", pa.int8()),
        ("dataset", pa.dictionary(pa.int32(), pa.string())),
        ("temperature", pa.float32()),
        ("top_p", pa.float32()),
        ("telling", pa.bool_()),
        ("context", pa.int32()),
        ("logit_q_max", pa.float32()),
        ("q_max", pa.float32()),
        ("q_sampled", pa.float32()),
        ("entropy", pa.float32()),
        ("margin", pa.float32()),
        ("q_sampled_before", pa.float32()),
        ("head_logit", pa.float32()),
        ("prediction", pa.float32()),
        ("admitted", pa.bool_()),
        ("label", pa.int8()),
        ("overlap", pa.float32()),
    ]
)

# One row a step that drafted for at least one request.
STEP_SCHEMA = pa.schema(
    [
        ("step", pa.int64()),
        ("seconds", pa.float64()),
        ("num_requests", pa.int32()),
        ("num_sampling", pa.int32()),
        ("num_non_draft_tokens", pa.int32()),
        ("num_packed_tokens", pa.int32()),
        ("context_tokens", pa.int64()),
        ("max_draft_budget", pa.int32()),
        ("draft_budget", pa.int32()),
        ("num_admitted", pa.int32()),
        ("num_accepted", pa.int32()),
        ("draft_ms", pa.float32()),
        ("verify_ms", pa.float32()),
        ("step_ms", pa.float32()),
        ("num_refits", pa.int32()),
        ("slope", pa.float32()),
        ("intercepts", pa.list_(pa.float32())),
    ]
)

SCHEMAS = {"drafts": DRAFT_SCHEMA, "steps": STEP_SCHEMA}
