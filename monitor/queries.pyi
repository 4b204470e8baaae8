# What each stored statement takes and gives. Written by ``python tests/query_stub.py`` from the SQL; do not edit.

from typing import Any, Generic, Protocol, TypedDict, TypeVar

_Row = TypeVar("_Row")

class Rows(Generic[_Row]):
    # An Arrow table whose rows are known.
    num_rows: int
    schema: Any
    column_names: list[str]
    def to_pylist(self) -> list[_Row]: ...
    def __getitem__(self, column: str) -> Any: ...
    def __getattr__(self, name: str) -> Any: ...

class Source(Protocol):
    # What stored statements are read from: a `Reader`, a `Store`, or what hands them on.
    def read(self, name: str, /, **params: Any) -> Any: ...

class AcceptancesRead(TypedDict):
    run: Any  # VARCHAR
    match: Any  # VARCHAR
    cause: Any  # VARCHAR
    because: Any  # VARCHAR
    up_to: Any  # DOUBLE
    author: Any  # VARCHAR
    accepted_at: Any  # TIMESTAMP WITH TIME ZONE

def acceptances_read(source: Source, /, *, runs: Any) -> Rows[AcceptancesRead]: ...

class AlertAcknowledged(TypedDict):
    episode: Any  # VARCHAR
    author: Any  # VARCHAR
    reason: Any  # VARCHAR

def alert_acknowledged(source: Source, /, *, runs: Any) -> Rows[AlertAcknowledged]: ...

class AlertChanges(TypedDict):
    kind: Any  # VARCHAR
    what: Any  # VARCHAR
    time: Any  # TIMESTAMP WITH TIME ZONE

def alert_changes(source: Source, /, *, last: Any, run: Any) -> Rows[AlertChanges]: ...

class AlertHistory(TypedDict):
    run: Any  # VARCHAR
    rule: Any  # VARCHAR
    severity: Any  # VARCHAR
    step: Any  # BIGINT
    time: Any  # TIMESTAMP WITH TIME ZONE
    state: Any  # VARCHAR
    value: Any  # DOUBLE
    words: Any  # VARCHAR

def alert_history(source: Source, /, *, run: Any) -> Rows[AlertHistory]: ...

class AlertList(TypedDict):
    run: Any  # VARCHAR
    rule: Any  # VARCHAR
    severity: Any  # VARCHAR
    phase: Any  # VARCHAR
    step: Any  # BIGINT
    started_step: Any  # BIGINT
    changed_at: Any  # TIMESTAMP WITH TIME ZONE
    value: Any  # DOUBLE
    words: Any  # VARCHAR
    told: Any  # BOOLEAN
    muted: Any  # VARCHAR
    episode: Any  # VARCHAR
    acknowledged_by: Any  # VARCHAR

def alert_list(source: Source, /, *, run: Any) -> Rows[AlertList]: ...

class AlertLoad(TypedDict):
    run: Any  # VARCHAR
    rule: Any  # VARCHAR
    document: Any  # VARCHAR

def alert_load(source: Source, /, *, runs: Any) -> Rows[AlertLoad]: ...

class AlertPulse(TypedDict):
    run: Any  # VARCHAR
    last_step: Any  # BIGINT
    last_step_at: Any  # TIMESTAMP WITH TIME ZONE
    last_record_at: Any  # TIMESTAMP WITH TIME ZONE
    step_seconds: Any  # DOUBLE
    relies_on_engine: Any  # BIGINT
    training_since: Any  # TIMESTAMP WITH TIME ZONE
    rollout_segments: Any  # BIGINT
    writers: Any  # STRUCT("name" VARCHAR, component VARCHAR, first_seen TIMESTAMP WITH TIME ZONE, last_seen TIMESTAMP WITH TIME ZONE, closed BOOLEAN, failed VARCHAR, trains BOOLEAN)[]
    spooled_at: Any  # TIMESTAMP WITH TIME ZONE

def alert_pulse(source: Source, /, *, runs: Any) -> Rows[AlertPulse]: ...

class AlertRuns(TypedDict):
    run: Any  # VARCHAR
    diagnosed_at: Any  # TIMESTAMP WITH TIME ZONE
    rules: Any  # VARCHAR[]
    open: Any  # BIGINT
    incident: Any  # BOOLEAN
    silenced: Any  # BOOLEAN
    acknowledged: Any  # BOOLEAN

def alert_runs(source: Source, /) -> Rows[AlertRuns]: ...

class AlertSilences(TypedDict):
    id: Any  # VARCHAR
    run: Any  # VARCHAR
    rule: Any  # VARCHAR
    author: Any  # VARCHAR
    reason: Any  # VARCHAR
    created_at: Any  # TIMESTAMP WITH TIME ZONE
    expires_at: Any  # TIMESTAMP WITH TIME ZONE

def alert_silences(source: Source, /, *, now: Any) -> Rows[AlertSilences]: ...

class AlertSteps(TypedDict):
    run: Any  # VARCHAR
    step: Any  # BIGINT
    time: Any  # TIMESTAMP WITH TIME ZONE
    values: Any  # STRUCT(metric VARCHAR, "value" DOUBLE)[]

def alert_steps(
    source: Source, /, *, after: Any, count: Any, metrics: Any, quiet_since: Any, runs: Any
) -> Rows[AlertSteps]: ...

class AlertTold(TypedDict):
    run: Any  # VARCHAR
    rule: Any  # VARCHAR
    episode: Any  # VARCHAR
    level: Any  # VARCHAR
    severity: Any  # VARCHAR
    cause: Any  # VARCHAR
    since_step: Any  # BIGINT
    count: Any  # BIGINT
    step: Any  # BIGINT
    acknowledged: Any  # BOOLEAN

def alert_told(source: Source, /, *, runs: Any) -> Rows[AlertTold]: ...

class AppDataQuarantine(TypedDict):
    path: Any  # VARCHAR
    origin: Any  # VARCHAR
    run: Any  # VARCHAR
    reason: Any  # VARCHAR
    message: Any  # VARCHAR
    bytes: Any  # BIGINT
    moved_at: Any  # TIMESTAMP WITH TIME ZONE
    total: Any  # BIGINT

def app_data_quarantine(source: Source, /, *, limit: Any) -> Rows[AppDataQuarantine]: ...

class AppDataRuns(TypedDict):
    run: Any  # VARCHAR
    sequences: Any  # BIGINT
    with_raw: Any  # BIGINT
    raw_bytes: Any  # BIGINT
    last_time: Any  # TIMESTAMP WITH TIME ZONE
    lost_sequences: Any  # BIGINT
    lost_tokens: Any  # BIGINT
    quarantined: Any  # BIGINT

def app_data_runs(source: Source, /) -> Rows[AppDataRuns]: ...

class AppDataSchema(TypedDict):
    name: Any  # VARCHAR
    is_view: Any  # BOOLEAN
    column: Any  # VARCHAR
    type: Any  # VARCHAR

def app_data_schema(source: Source, /) -> Rows[AppDataSchema]: ...

class AppEvents(TypedDict):
    kind: Any  # VARCHAR
    label: Any  # VARCHAR
    happened_at: Any  # TIMESTAMP WITH TIME ZONE
    cache_cleared: Any  # BOOLEAN
    pause_mode: Any  # VARCHAR
    step: Any  # BIGINT

def app_events(source: Source, /, *, run: Any) -> Rows[AppEvents]: ...

class AppLearningRates(TypedDict):
    label: Any  # VARCHAR
    step: Any  # BIGINT
    before: Any  # DOUBLE
    after: Any  # DOUBLE
    until: Any  # BIGINT

def app_learning_rates(source: Source, /, *, run: Any) -> Rows[AppLearningRates]: ...

class AppMarks(TypedDict):
    kind: Any  # VARCHAR
    step: Any  # BIGINT
    label: Any  # VARCHAR
    words: Any  # VARCHAR

def app_marks(source: Source, /, *, run: Any) -> Rows[AppMarks]: ...

class AppMismatchProfiled(TypedDict):
    steps: Any  # BIGINT
    last_step: Any  # BIGINT
    revision: Any  # BIGINT
    tokens: Any  # BIGINT

def app_mismatch_profiled(source: Source, /, *, run: Any) -> Rows[AppMismatchProfiled]: ...

class AppMismatchQuantiles(TypedDict):
    column: Any  # BIGINT
    steps: Any  # BIGINT
    profiled: Any  # BIGINT
    kept: Any  # BIGINT
    expected: Any  # BIGINT
    seen: Any  # BIGINT
    drawn: Any  # BIGINT
    broken: Any  # BIGINT
    p1: Any  # INTEGER
    p10: Any  # INTEGER
    p50: Any  # INTEGER
    p90: Any  # INTEGER
    p99: Any  # INTEGER

def app_mismatch_quantiles(
    source: Source, /, *, first: Any, last: Any, pair: Any, run: Any, width: Any
) -> Rows[AppMismatchQuantiles]: ...

class AppPoints(TypedDict):
    step: Any  # BIGINT
    metric: Any  # VARCHAR
    value: Any  # DOUBLE

def app_points(source: Source, /, *, metrics: Any, run: Any, since: Any) -> Rows[AppPoints]: ...

class AppRuns(TypedDict):
    run: Any  # VARCHAR
    writers: Any  # STRUCT("name" VARCHAR, last_seen TIMESTAMP WITH TIME ZONE, closed BOOLEAN, failed VARCHAR, trains BOOLEAN)[]
    steps: Any  # BIGINT
    last_step: Any  # BIGINT
    step_seconds: Any  # DOUBLE
    tokens: Any  # BIGINT
    sequences: Any  # BIGINT
    revision: Any  # BIGINT
    news: Any  # VARCHAR
    judgement: Any  # STRUCT(run VARCHAR, newest_step BIGINT, unjudged_at TIMESTAMP WITH TIME ZONE, steps_behind BIGINT, judged_step BIGINT, diagnosed_at TIMESTAMP WITH TIME ZONE, verdict VARCHAR, since_step BIGINT, cause VARCHAR, "share" DOUBLE, urgency VARCHAR, advice VARCHAR, "level" VARCHAR, spooled_at TIMESTAMP WITH TIME ZONE, alerts STRUCT("rule" VARCHAR, severity VARCHAR, started_step BIGINT, started_at TIMESTAMP WITH TIME ZONE, muted VARCHAR, acknowledged_by VARCHAR)[])
    spooled_at: Any  # TIMESTAMP WITH TIME ZONE
    last_record_at: Any  # TIMESTAMP WITH TIME ZONE
    dated_ahead: Any  # DOUBLE

def app_runs(source: Source, /) -> Rows[AppRuns]: ...

class AppRunsGlance(TypedDict):
    run: Any  # VARCHAR
    k3: Any  # DOUBLE[]
    lag: Any  # DOUBLE
    correction: Any  # VARCHAR
    corrected_from: Any  # BIGINT

def app_runs_glance(source: Source, /, *, runs: Any) -> Rows[AppRunsGlance]: ...

class AppSteps(TypedDict):
    step: Any  # BIGINT
    tokens: Any  # BIGINT
    sequences: Any  # BIGINT
    time: Any  # TIMESTAMP WITH TIME ZONE
    revision: Any  # BIGINT

def app_steps(source: Source, /, *, run: Any, since: Any) -> Rows[AppSteps]: ...

class AppTokensCorrections(TypedDict):
    rank: Any  # INTEGER
    correction: Any  # VARCHAR

def app_tokens_corrections(source: Source, /, *, run: Any, step: Any) -> Rows[AppTokensCorrections]: ...

class AppTokensSequence(TypedDict):
    position: Any  # INTEGER
    token_id: Any  # INTEGER
    mask: Any  # BOOLEAN
    rollout_logprob: Any  # FLOAT
    trainer_logprob: Any  # FLOAT
    current_logprob: Any  # FLOAT
    reference_logprob: Any  # FLOAT
    teacher_logprob: Any  # FLOAT
    entropy: Any  # FLOAT
    advantage: Any  # FLOAT
    weight_version: Any  # VARCHAR

def app_tokens_sequence(
    source: Source,
    /,
    *,
    row: Any,
    run: Any,
    segment: Any,
    step: Any,
    rollout_files: Any = ...,
    training_files: Any = ...,
) -> Rows[AppTokensSequence]: ...

class AppTokensSequences(TypedDict):
    sample_id: Any  # VARCHAR
    group_id: Any  # VARCHAR
    tokens: Any  # BIGINT
    broken: Any  # BIGINT
    n_total: Any  # INTEGER
    k3_kl: Any  # DOUBLE
    share: Any  # DOUBLE
    log_ratio_mean: Any  # DOUBLE
    log_ratio_min: Any  # DOUBLE
    log_ratio_max: Any  # DOUBLE
    reward: Any  # DOUBLE
    rank: Any  # INTEGER
    replica: Any  # VARCHAR
    trainer_weight_version: Any  # VARCHAR
    spans: Any  # STRUCT("start" INTEGER, "end" INTEGER, "version" VARCHAR)[]
    cached_prefix_tokens: Any  # INTEGER
    finish_reason: Any  # VARCHAR
    rollout_source: Any  # VARCHAR
    alignment: Any  # VARCHAR
    tags: Any  # MAP(VARCHAR, VARCHAR)
    raw_kept: Any  # BOOLEAN
    segment_id: Any  # VARCHAR
    row: Any  # INTEGER

def app_tokens_sequences(
    source: Source, /, *, count: Any, others: Any, pair: Any, run: Any, sample: Any, step: Any
) -> Rows[AppTokensSequences]: ...

class AppTokensSides(TypedDict):
    rollout_source: Any  # VARCHAR
    alignment: Any  # VARCHAR
    sequences: Any  # BIGINT
    kept: Any  # BIGINT
    reduced: Any  # BIGINT
    frozen_at: Any  # TIMESTAMP WITH TIME ZONE

def app_tokens_sides(source: Source, /, *, run: Any, step: Any) -> Rows[AppTokensSides]: ...

class AppTokensSteps(TypedDict):
    step: Any  # BIGINT
    k3_kl: Any  # DOUBLE
    broken: Any  # BIGINT
    kept: Any  # BIGINT

def app_tokens_steps(source: Source, /, *, pair: Any, run: Any) -> Rows[AppTokensSteps]: ...

class AppWeightsUpdates(TypedDict):
    source: Any  # VARCHAR
    replica: Any  # VARCHAR
    updates: Any  # BIGINT
    newest_version: Any  # VARCHAR
    behind: Any  # BIGINT
    missed: Any  # BIGINT
    usual_stride: Any  # BIGINT
    all_skipped: Any  # BIGINT
    all_backwards: Any  # BIGINT
    all_unloaded: Any  # BIGINT
    all_reloads: Any  # BIGINT
    cleared: Any  # BIGINT
    kept: Any  # BIGINT
    usual_delay: Any  # DOUBLE
    longest_delay: Any  # DOUBLE
    usual_pause: Any  # DOUBLE
    longest_pause: Any  # DOUBLE
    pauses: Any  # VARCHAR[]
    unknown: Any  # BIGINT

def app_weights_updates(source: Source, /, *, run: Any) -> Rows[AppWeightsUpdates]: ...
def archive_sampled(source: Any, incoming: Any = ..., /) -> Rows[dict[str, Any]]: ...
def archive_trained(source: Any, incoming: Any = ..., /) -> Rows[dict[str, Any]]: ...

class ArchiveWaiting(TypedDict):
    raw_file: Any  # VARCHAR
    segment_id: Any  # VARCHAR

def archive_waiting(source: Source, /, *, run: Any) -> Rows[ArchiveWaiting]: ...

class BitsCandidates(TypedDict):
    run: Any  # VARCHAR

def bits_candidates(source: Source, /, *, runs: Any, steps: Any) -> Rows[BitsCandidates]: ...

class BitsClaims(TypedDict):
    run: Any  # VARCHAR
    document: Any  # VARCHAR

def bits_claims(source: Source, /, *, runs: Any) -> Rows[BitsClaims]: ...

class BitsDiffering(TypedDict):
    sample_id: Any  # VARCHAR
    rank: Any  # INTEGER
    segment_id: Any  # VARCHAR
    row: Any  # INTEGER
    raw_kept: Any  # BOOLEAN
    trainer_version: Any  # VARCHAR
    replica: Any  # VARCHAR
    n: Any  # BIGINT
    differing: Any  # BIGINT
    sequences: Any  # BIGINT
    others: Any  # BIGINT

def bits_differing(source: Source, /, *, count: Any, run: Any, step: Any) -> Rows[BitsDiffering]: ...

class BitsNewest(TypedDict):
    step: Any  # BIGINT
    segment_id: Any  # VARCHAR
    row: Any  # INTEGER

def bits_newest(source: Source, /, *, run: Any) -> Rows[BitsNewest]: ...

class BitsSteps(TypedDict):
    run: Any  # VARCHAR
    step: Any  # BIGINT
    tokens: Any  # BIGINT
    compared: Any  # BIGINT
    differing: Any  # BIGINT
    unknown: Any  # BIGINT
    older: Any  # BIGINT
    older_differing: Any  # BIGINT

def bits_steps(source: Source, /, *, runs: Any, until: Any) -> Rows[BitsSteps]: ...

class CliAttempts(TypedDict):
    run: Any  # VARCHAR
    steps: Any  # BIGINT
    first_step: Any  # BIGINT
    last_step: Any  # BIGINT
    older: Any  # BIGINT
    aside_steps: Any  # BIGINT
    aside_first: Any  # BIGINT
    aside_last: Any  # BIGINT
    aside: Any  # BIGINT

def cli_attempts(source: Source, /, *, run: Any) -> Rows[CliAttempts]: ...

class CliCollectors(TypedDict):
    writer: Any  # VARCHAR
    component: Any  # VARCHAR
    closed: Any  # BOOLEAN
    last_sign: Any  # TIMESTAMP WITH TIME ZONE
    last_segment: Any  # TIMESTAMP WITH TIME ZONE
    segments: Any  # BIGINT
    tokens: Any  # BIGINT
    self_test: Any  # VARCHAR

def cli_collectors(source: Source, /, *, run: Any) -> Rows[CliCollectors]: ...

class CliEnds(TypedDict):
    run: Any  # VARCHAR
    writer: Any  # VARCHAR
    component: Any  # VARCHAR
    rank: Any  # INTEGER
    last_sign: Any  # TIMESTAMP WITH TIME ZONE
    sequences: Any  # BIGINT
    tokens: Any  # BIGINT
    flush_seconds: Any  # DOUBLE
    last_step: Any  # BIGINT
    absent_steps: Any  # BIGINT

def cli_ends(source: Source, /, *, now: Any, run: Any, silent: Any) -> Rows[CliEnds]: ...

class CliGaps(TypedDict):
    run: Any  # VARCHAR
    framework: Any  # VARCHAR
    trained: Any  # BIGINT
    sampled: Any  # BIGINT
    without_rollout_logprobs: Any  # BIGINT
    unaligned: Any  # BIGINT
    without_rollout_record: Any  # BIGINT
    without_trainer_version: Any  # BIGINT
    with_stated_versions: Any  # BIGINT
    joined_by_tokens: Any  # BIGINT
    ambiguous: Any  # BIGINT
    without_rollout_version: Any  # BIGINT
    without_entropy: Any  # BIGINT
    without_reward: Any  # BIGINT
    without_raw_tokens: Any  # BIGINT
    raw_sampled: Any  # BIGINT
    repeated: Any  # BIGINT
    tokens: Any  # BIGINT
    measured_tokens: Any  # BIGINT
    nonfinite_tokens: Any  # BIGINT
    impossible_tokens: Any  # BIGINT
    blank_tokens: Any  # BIGINT
    without_current_logprobs: Any  # BIGINT

def cli_gaps(source: Source, /, *, run: Any) -> Rows[CliGaps]: ...

class CliMetrics(TypedDict):
    step: Any  # BIGINT
    metric: Any  # VARCHAR
    value: Any  # DOUBLE

def cli_metrics(source: Source, /, *, first: Any, last: Any, run: Any) -> Rows[CliMetrics]: ...

class CliNameClashes(TypedDict):
    run: Any  # VARCHAR
    trained: Any  # BIGINT
    engines: Any  # BIGINT
    twice: Any  # BIGINT
    reused: Any  # BIGINT

def cli_name_clashes(source: Source, /, *, run: Any) -> Rows[CliNameClashes]: ...

class CliProblems(TypedDict):
    component: Any  # VARCHAR
    event: Any  # VARCHAR
    severity: Any  # VARCHAR
    times: Any  # BIGINT
    sequences_lost: Any  # BIGINT
    tokens_lost: Any  # BIGINT
    last_at: Any  # TIMESTAMP WITH TIME ZONE
    message: Any  # VARCHAR

def cli_problems(source: Source, /, *, run: Any) -> Rows[CliProblems]: ...

class CliSelfTests(TypedDict):
    run: Any  # VARCHAR
    writer: Any  # VARCHAR
    component: Any  # VARCHAR
    time: Any  # TIMESTAMP WITH TIME ZONE
    severity: Any  # VARCHAR
    message: Any  # VARCHAR

def cli_self_tests(source: Source, /) -> Rows[CliSelfTests]: ...

class CliSent(TypedDict):
    collectors: Any  # BIGINT
    sent: Any  # BIGINT
    stored: Any  # BIGINT
    missing: Any  # BIGINT
    surplus: Any  # BIGINT

def cli_sent(source: Source, /, *, run: Any) -> Rows[CliSent]: ...

class CliSteps(TypedDict):
    step: Any  # BIGINT
    tokens: Any  # BIGINT
    sequences: Any  # BIGINT

def cli_steps(source: Source, /, *, first: Any, last: Any, run: Any) -> Rows[CliSteps]: ...

class CliStrayMarks(TypedDict):
    run: Any  # VARCHAR
    replica: Any  # VARCHAR
    marks: Any  # BIGINT
    engines: Any  # VARCHAR[]

def cli_stray_marks(source: Source, /, *, run: Any) -> Rows[CliStrayMarks]: ...

class ConfigDocuments(TypedDict):
    fingerprint: Any  # VARCHAR
    document: Any  # VARCHAR

def config_documents(source: Source, /, *, kind: Any, run: Any) -> Rows[ConfigDocuments]: ...

class ControllerAbandoned(TypedDict):
    step: Any  # BIGINT

def controller_abandoned(source: Source, /, *, run: Any, steps: Any) -> Rows[ControllerAbandoned]: ...

class ControllerAcks(TypedDict):
    step: Any  # BIGINT
    fingerprint: Any  # VARCHAR
    masked: Any  # DOUBLE

def controller_acks(source: Source, /, *, first: Any, last: Any, run: Any) -> Rows[ControllerAcks]: ...

class ControllerActions(TypedDict):
    number: Any  # BIGINT
    step: Any  # BIGINT
    time: Any  # TIMESTAMP WITH TIME ZONE
    name: Any  # VARCHAR
    reason: Any  # VARCHAR
    words: Any  # VARCHAR
    severity: Any  # VARCHAR
    details: Any  # VARCHAR

def controller_actions(source: Source, /, *, run: Any) -> Rows[ControllerActions]: ...

class ControllerCoverage(TypedDict):
    run: Any  # VARCHAR
    coverage: Any  # DOUBLE

def controller_coverage(source: Source, /, *, first: Any, last: Any, runs: Any) -> Rows[ControllerCoverage]: ...

class ControllerHeard(TypedDict):
    made: Any  # TIMESTAMP WITH TIME ZONE
    told: Any  # TIMESTAMP WITH TIME ZONE
    impossible: Any  # VARCHAR

def controller_heard(source: Source, /, *, first: Any, run: Any) -> Rows[ControllerHeard]: ...

class ControllerRead(TypedDict):
    run: Any  # VARCHAR
    control: Any  # VARCHAR
    directives: Any  # VARCHAR
    actions: Any  # BIGINT

def controller_read(source: Source, /, *, runs: Any) -> Rows[ControllerRead]: ...

class ControllerTrend(TypedDict):
    step: Any  # BIGINT
    k3: Any  # DOUBLE
    ess: Any  # DOUBLE
    reward: Any  # DOUBLE
    grad_norm: Any  # DOUBLE
    masked: Any  # DOUBLE
    weight_ess: Any  # DOUBLE

def controller_trend(source: Source, /, *, first: Any, last: Any, run: Any) -> Rows[ControllerTrend]: ...

class DeletionTables(TypedDict):
    table_name: Any  # VARCHAR

def deletion_tables(source: Source, /) -> Rows[DeletionTables]: ...

class DiagnosisConfigChanges(TypedDict):
    step: Any  # BIGINT
    setup: Any  # VARCHAR

def diagnosis_config_changes(source: Source, /, *, run: Any) -> Rows[DiagnosisConfigChanges]: ...

class DiagnosisConfigs(TypedDict):
    fingerprint: Any  # VARCHAR
    kind: Any  # VARCHAR
    document: Any  # VARCHAR
    time: Any  # TIMESTAMP WITH TIME ZONE
    sequences: Any  # BIGINT
    deciding: Any  # JSON

def diagnosis_configs(source: Source, /, *, run: Any) -> Rows[DiagnosisConfigs]: ...

class DiagnosisDone(TypedDict):
    run: Any  # VARCHAR
    revision: Any  # BIGINT
    diagnosed_at: Any  # TIMESTAMP WITH TIME ZONE
    changed_at: Any  # TIMESTAMP WITH TIME ZONE

def diagnosis_done(source: Source, /) -> Rows[DiagnosisDone]: ...

class DiagnosisKept(TypedDict):
    run: Any  # VARCHAR
    step: Any  # BIGINT
    document: Any  # VARCHAR

def diagnosis_kept(source: Source, /, *, runs: Any) -> Rows[DiagnosisKept]: ...

class DiagnosisLatest(TypedDict):
    run: Any  # VARCHAR
    step: Any  # BIGINT
    verdict: Any  # VARCHAR
    layer: Any  # VARCHAR
    since_step: Any  # BIGINT
    causes: Any  # VARCHAR[]
    document: Any  # VARCHAR
    diagnosed_at: Any  # TIMESTAMP WITH TIME ZONE

def diagnosis_latest(source: Source, /, *, run: Any) -> Rows[DiagnosisLatest]: ...

class DiagnosisLearningRate(TypedDict):
    since: Any  # BIGINT

def diagnosis_learning_rate(source: Source, /, *, run: Any) -> Rows[DiagnosisLearningRate]: ...

class DiagnosisRoutes(TypedDict):
    step: Any  # BIGINT
    rank: Any  # INTEGER
    segment_id: Any  # VARCHAR
    row: Any  # INTEGER
    turn: Any  # BIGINT
    start: Any  # INTEGER
    end: Any  # INTEGER
    token_ids: Any  # INTEGER[]
    mask: Any  # BOOLEAN[]
    routes: Any  # USMALLINT[]
    rollout_token_ids: Any  # INTEGER[]
    rollout_routes: Any  # USMALLINT[]

def diagnosis_routes(
    source: Source, /, *, each: Any, run: Any, steps: Any, rollout_files: Any = ..., training_files: Any = ...
) -> Rows[DiagnosisRoutes]: ...

class DiagnosisSampled(TypedDict):
    time: Any  # DOUBLE
    n_tokens: Any  # INTEGER
    entropy: Any  # DOUBLE
    prompt: Any  # VARCHAR
    first: Any  # BIGINT
    last: Any  # BIGINT
    trained_at: Any  # DOUBLE
    reward: Any  # DOUBLE
    until: Any  # DOUBLE
    missing: Any  # BIGINT

def diagnosis_sampled(source: Source, /, *, most: Any, run: Any) -> Rows[DiagnosisSampled]: ...

class DiagnosisSlices(TypedDict):
    step: Any  # BIGINT
    version: Any  # BIGINT
    replica: Any  # VARCHAR
    cached: Any  # BOOLEAN
    in_flight: Any  # BOOLEAN
    lag: Any  # BIGINT
    sequences: Any  # BIGINT
    n: Any  # BIGINT
    d: Any  # DOUBLE
    abs_d: Any  # DOUBLE
    k3: Any  # DOUBLE
    c_nn: Any  # DOUBLE
    c_aa: Any  # DOUBLE
    c_an: Any  # DOUBLE

def diagnosis_slices(
    source: Source, /, *, highest: Any, lowest: Any, run: Any, steps: Any
) -> Rows[DiagnosisSlices]: ...

class DiagnosisSteps(TypedDict):
    step: Any  # BIGINT
    compared: Any  # BIGINT
    n_expected: Any  # BIGINT
    n: Any  # BIGINT
    n_compared: Any  # BIGINT
    abs_d: Any  # DOUBLE
    k3: Any  # DOUBLE
    ratio_m1: Any  # DOUBLE
    t: Any  # DOUBLE
    r: Any  # DOUBLE
    t2: Any  # DOUBLE
    r2: Any  # DOUBLE
    tr: Any  # DOUBLE
    n_up: Any  # BIGINT
    n_down: Any  # BIGINT
    n_same: Any  # BIGINT
    nonfinite_rollout: Any  # BIGINT
    nonfinite_trainer: Any  # BIGINT
    sentinel: Any  # BIGINT
    positive_rollout: Any  # BIGINT
    zero_rollout: Any  # BIGINT
    zero_trainer: Any  # BIGINT
    c_nn: Any  # DOUBLE
    c_aa: Any  # DOUBLE
    c_an: Any  # DOUBLE
    c_qq: Any  # DOUBLE
    c_qn: Any  # DOUBLE
    update: Any  # DOUBLE
    reference: Any  # DOUBLE
    sequences: Any  # BIGINT
    tokens: Any  # BIGINT
    received: Any  # BIGINT
    seen: Any  # BIGINT
    missing: Any  # BIGINT
    missing_tokens: Any  # BIGINT
    unseen: Any  # BIGINT
    unseen_tokens: Any  # BIGINT
    unaligned: Any  # BIGINT
    other_ids: Any  # BIGINT
    routed: Any  # BIGINT
    versions_compared: Any  # BIGINT
    versions_differing: Any  # BIGINT
    engine_older: Any  # BIGINT
    engine_newer: Any  # BIGINT
    grouped: Any  # BIGINT
    copies: Any  # BIGINT

def diagnosis_steps(source: Source, /, *, first: Any, last: Any, run: Any) -> Rows[DiagnosisSteps]: ...

class DiagnosisStepsOnTheirWay(TypedDict):
    step: Any  # BIGINT

def diagnosis_steps_on_their_way(source: Source, /, *, run: Any) -> Rows[DiagnosisStepsOnTheirWay]: ...

class DiagnosisTokens(TypedDict):
    step: Any  # BIGINT
    token_ids: Any  # INTEGER[]
    mask: Any  # BOOLEAN[]
    received: Any  # FLOAT[]
    source: Any  # FLOAT[]
    t: Any  # FLOAT[]
    entropy: Any  # FLOAT[]
    stated: (
        Any  # STRUCT("start" INTEGER, "end" INTEGER, sampled_start INTEGER, sampled_end INTEGER, "version" VARCHAR)[]
    )
    rank: Any  # INTEGER
    tags: Any  # MAP(VARCHAR, VARCHAR)
    group_id: Any  # VARCHAR
    weight_version: Any  # VARCHAR
    rollout_source: Any  # VARCHAR
    alignment: Any  # VARCHAR
    replica: Any  # VARCHAR
    cached_prefix_tokens: Any  # INTEGER
    prompt_hash: Any  # VARCHAR
    finish_reason: Any  # VARCHAR
    prompt_length: Any  # INTEGER
    spans: Any  # STRUCT("start" INTEGER, "end" INTEGER, "version" VARCHAR)[]

def diagnosis_tokens(
    source: Source, /, *, parts: Any, run: Any, steps: Any, rollout_files: Any = ..., training_files: Any = ...
) -> Rows[DiagnosisTokens]: ...

class DiagnosisWeightReadings(TypedDict):
    source: Any  # VARCHAR
    replica: Any  # VARCHAR
    worker: Any  # VARCHAR
    version: Any  # VARCHAR
    step: Any  # BIGINT
    fingerprint: Any  # VARCHAR
    layout: Any  # VARCHAR
    reason: Any  # VARCHAR
    tensor_hashes: Any  # UINTEGER[]
    adapter: Any  # VARCHAR

def diagnosis_weight_readings(source: Source, /, *, run: Any) -> Rows[DiagnosisWeightReadings]: ...

class DiagnosisWeights(TypedDict):
    run: Any  # VARCHAR
    version: Any  # VARCHAR
    step: Any  # BIGINT
    source: Any  # VARCHAR
    replica: Any  # VARCHAR
    time: Any  # TIMESTAMP WITH TIME ZONE
    loaded: Any  # BOOLEAN
    pause_mode: Any  # VARCHAR
    cache_cleared: Any  # BOOLEAN
    tensors: Any  # BIGINT
    checksum: Any  # VARCHAR
    elements: Any  # MAP(VARCHAR, BIGINT)

def diagnosis_weights(source: Source, /, *, after: Any, runs: Any) -> Rows[DiagnosisWeights]: ...

class EventStudySwitch(TypedDict):
    distance: Any  # BIGINT
    broken: Any  # BIGINT
    logprob_abs_diff_mean: Any  # DOUBLE
    logprob_abs_diff_error: Any  # DOUBLE

def event_study_switch(
    source: Source,
    /,
    *,
    first: Any,
    last: Any,
    reach: Any,
    run: Any,
    rollout_files: Any = ...,
    training_files: Any = ...,
) -> Rows[EventStudySwitch]: ...

class ExperimentsLatest(TypedDict):
    kind: Any  # VARCHAR
    finished_at: Any  # TIMESTAMP WITH TIME ZONE
    author: Any  # VARCHAR
    departs: Any  # VARCHAR
    document: Any  # VARCHAR

def experiments_latest(source: Source, /, *, run: Any) -> Rows[ExperimentsLatest]: ...

class ExportConfigRecords(TypedDict):
    time: Any  # TIMESTAMP WITH TIME ZONE
    fingerprint: Any  # VARCHAR
    kind: Any  # VARCHAR
    replica: Any  # VARCHAR
    document: Any  # VARCHAR

def export_config_records(source: Source, /, *, run: Any) -> Rows[ExportConfigRecords]: ...

class ExportExtent(TypedDict):
    segments: Any  # BIGINT
    since: Any  # TIMESTAMP WITH TIME ZONE
    raw_records: Any  # BIGINT

def export_extent(source: Source, /, *, run: Any) -> Rows[ExportExtent]: ...

class ExportHealthRecords(TypedDict):
    time: Any  # TIMESTAMP WITH TIME ZONE
    component: Any  # VARCHAR
    event: Any  # VARCHAR
    severity: Any  # VARCHAR
    message: Any  # VARCHAR
    count: Any  # BIGINT
    sequences: Any  # BIGINT
    tokens: Any  # BIGINT
    step: Any  # BIGINT
    details: Any  # VARCHAR

def export_health_records(source: Source, /, *, run: Any) -> Rows[ExportHealthRecords]: ...

class ExportRollout(TypedDict):
    time: Any  # TIMESTAMP WITH TIME ZONE
    sample_id: Any  # VARCHAR
    request_id: Any  # VARCHAR
    group_id: Any  # VARCHAR
    replica: Any  # VARCHAR
    token_ids: Any  # INTEGER[]
    logprobs: Any  # FLOAT[]
    spans: Any  # STRUCT("start" INTEGER, "end" INTEGER, "version" VARCHAR)[]
    prompt_length: Any  # INTEGER
    prompt_hash: Any  # VARCHAR
    cached_prefix_tokens: Any  # INTEGER
    finish_reason: Any  # VARCHAR
    sampling_id: Any  # VARCHAR
    engine_config_id: Any  # VARCHAR
    routes: Any  # USMALLINT[]
    adapter: Any  # VARCHAR
    adapter_id: Any  # BIGINT
    step_times: Any  # BIGINT[]
    decisions: Any  # STRUCT("end" INTEGER, "at" BIGINT, "first" BIGINT, "last" BIGINT)[]
    machine: Any  # VARCHAR
    clock_offset: Any  # BIGINT
    clock_set: Any  # BIGINT
    engine_started: Any  # BIGINT
    trajectory: Any  # VARCHAR
    prompt_token_ids: Any  # INTEGER[]

def export_rollout(source: Source, /, *, run: Any, segments: Any, rollout_files: Any = ...) -> Rows[ExportRollout]: ...

class ExportSegments(TypedDict):
    segment_id: Any  # VARCHAR
    kind: Any  # VARCHAR
    rows: Any  # BIGINT

def export_segments(source: Source, /, *, run: Any) -> Rows[ExportSegments]: ...

class ExportStepMetrics(TypedDict):
    step: Any  # BIGINT
    name: Any  # VARCHAR
    value: Any  # DOUBLE

def export_step_metrics(source: Source, /, *, first: Any, last: Any, run: Any) -> Rows[ExportStepMetrics]: ...

class ExportStepRecords(TypedDict):
    step: Any  # BIGINT
    rank: Any  # INTEGER
    time: Any  # TIMESTAMP WITH TIME ZONE
    scalars: Any  # MAP(VARCHAR, DOUBLE)
    correction: Any  # VARCHAR

def export_step_records(source: Source, /, *, run: Any) -> Rows[ExportStepRecords]: ...

class ExportStepScalars(TypedDict):
    step: Any  # BIGINT
    name: Any  # VARCHAR
    value: Any  # DOUBLE

def export_step_scalars(source: Source, /, *, first: Any, last: Any, run: Any) -> Rows[ExportStepScalars]: ...

class ExportSteps(TypedDict):
    run: Any  # VARCHAR
    step: Any  # BIGINT
    time: Any  # TIMESTAMP WITH TIME ZONE
    tokens: Any  # BIGINT
    sequences: Any  # BIGINT
    correction: Any  # VARCHAR
    computed_at: Any  # TIMESTAMP WITH TIME ZONE
    revision: Any  # BIGINT

def export_steps(source: Source, /, *, run: Any) -> Rows[ExportSteps]: ...

class ExportTokens(TypedDict):
    run: Any  # VARCHAR
    step: Any  # BIGINT
    rank: Any  # INTEGER
    sample_id: Any  # VARCHAR
    group_id: Any  # VARCHAR
    position: Any  # INTEGER
    token_id: Any  # INTEGER
    mask: Any  # BOOLEAN
    rollout_logprob: Any  # FLOAT
    trainer_logprob: Any  # FLOAT
    current_logprob: Any  # FLOAT
    reference_logprob: Any  # FLOAT
    teacher_logprob: Any  # FLOAT
    log_ratio: Any  # DOUBLE
    broken: Any  # VARCHAR
    entropy: Any  # FLOAT
    advantage: Any  # FLOAT
    weight_version: Any  # VARCHAR
    trainer_weight_version: Any  # VARCHAR
    rollout_source: Any  # VARCHAR
    older: Any  # BOOLEAN

def export_tokens(
    source: Source, /, *, run: Any, step: Any, rollout_files: Any = ..., training_files: Any = ...
) -> Rows[ExportTokens]: ...

class ExportTraining(TypedDict):
    time: Any  # TIMESTAMP WITH TIME ZONE
    step: Any  # BIGINT
    rank: Any  # INTEGER
    sample_id: Any  # VARCHAR
    group_id: Any  # VARCHAR
    token_ids: Any  # INTEGER[]
    mask: Any  # BOOLEAN[]
    rollout_logprobs: Any  # FLOAT[]
    trainer_logprobs: Any  # FLOAT[]
    current_logprobs: Any  # FLOAT[]
    entropy: Any  # FLOAT[]
    advantages: Any  # FLOAT[]
    reward: Any  # DOUBLE
    weight_version: Any  # VARCHAR
    tags: Any  # MAP(VARCHAR, VARCHAR)
    routes: Any  # USMALLINT[]
    part_ids: Any  # VARCHAR[]
    reference_logprobs: Any  # FLOAT[]
    rollout_versions: (
        Any  # STRUCT("start" INTEGER, "end" INTEGER, sampled_start INTEGER, sampled_end INTEGER, "version" VARCHAR)[]
    )
    teacher_logprobs: Any  # FLOAT[]

def export_training(
    source: Source, /, *, run: Any, segments: Any, training_files: Any = ...
) -> Rows[ExportTraining]: ...

class ExportWeightRecords(TypedDict):
    time: Any  # TIMESTAMP WITH TIME ZONE
    version: Any  # VARCHAR
    step: Any  # BIGINT
    source: Any  # VARCHAR
    replica: Any  # VARCHAR
    requested_at: Any  # TIMESTAMP WITH TIME ZONE
    started_at: Any  # TIMESTAMP WITH TIME ZONE
    applied_at: Any  # TIMESTAMP WITH TIME ZONE
    resumed_at: Any  # TIMESTAMP WITH TIME ZONE
    pause_mode: Any  # VARCHAR
    cache_cleared: Any  # BOOLEAN
    tensors: Any  # BIGINT
    checksum: Any  # VARCHAR
    adapter: Any  # VARCHAR
    moment: Any  # BIGINT
    machine: Any  # VARCHAR
    seen: Any  # STRUCT(began BIGINT, ended BIGINT, decided BIGINT, clock_offset BIGINT, clock_set BIGINT, engine_started BIGINT)
    unless: Any  # STRUCT(since BIGINT, "until" BIGINT)
    fingerprint: Any  # VARCHAR
    layout: Any  # VARCHAR
    tensor_hashes: Any  # UINTEGER[]
    worker: Any  # VARCHAR
    reason: Any  # VARCHAR
    elements: Any  # MAP(VARCHAR, BIGINT)

def export_weight_records(source: Source, /, *, run: Any) -> Rows[ExportWeightRecords]: ...
def freeze_covered(source: Any, incoming: Any = ..., /, *, run: Any, steps: Any) -> Rows[dict[str, Any]]: ...

class FreezeDue(TypedDict):
    run: Any  # VARCHAR
    step: Any  # BIGINT
    sequences: Any  # BIGINT
    revision: Any  # BIGINT

def freeze_due(source: Source, /, *, deleted: Any, most: Any, protected: Any, quiet_since: Any) -> Rows[FreezeDue]: ...
def freeze_known(source: Any, incoming: Any = ..., /) -> Rows[dict[str, Any]]: ...

class FreezeRolloutsDue(TypedDict):
    run: Any  # VARCHAR
    segment_id: Any  # VARCHAR
    row: Any  # INTEGER

def freeze_rollouts_due(source: Source, /, *, run: Any, steps: Any) -> Rows[FreezeRolloutsDue]: ...
def freeze_rows(source: Any, incoming: Any = ..., /) -> Rows[dict[str, Any]]: ...

class FreezeSize(TypedDict):
    bytes: Any  # BIGINT
    free_bytes: Any  # BIGINT

def freeze_size(source: Source, /) -> Rows[FreezeSize]: ...

class FreezeSpan(TypedDict):
    frozen: Any  # BIGINT
    first_frozen: Any  # BIGINT
    last_frozen: Any  # BIGINT

def freeze_span(source: Source, /, *, first: Any, last: Any, run: Any) -> Rows[FreezeSpan]: ...

class ImportRecorded(TypedDict):
    step: Any  # BIGINT

def import_recorded(source: Source, /, *, run: Any) -> Rows[ImportRecorded]: ...

class ImportSegments(TypedDict):
    writer: Any  # VARCHAR
    sequence: Any  # INTEGER
    kind: Any  # VARCHAR
    rows: Any  # BIGINT
    segment_id: Any  # VARCHAR
    time: Any  # TIMESTAMP WITH TIME ZONE
    ends: Any  # HUGEINT

def import_segments(source: Source, /, *, run: Any) -> Rows[ImportSegments]: ...

class IncidentCheckpoints(TypedDict):
    checkpoints: Any  # BIGINT
    step: Any  # BIGINT
    folder: Any  # VARCHAR
    deleted: Any  # BIGINT

def incident_checkpoints(source: Source, /, *, before: Any, run: Any) -> Rows[IncidentCheckpoints]: ...

class IncidentConfigs(TypedDict):
    kind: Any  # VARCHAR
    replica: Any  # VARCHAR
    happened_at: Any  # TIMESTAMP WITH TIME ZONE
    document: Any  # VARCHAR
    before: Any  # VARCHAR

def incident_configs(source: Source, /, *, run: Any) -> Rows[IncidentConfigs]: ...

class IncidentCritical(TypedDict):
    rule: Any  # VARCHAR
    words: Any  # VARCHAR

def incident_critical(source: Source, /, *, incident: Any) -> Rows[IncidentCritical]: ...

class IncidentList(TypedDict):
    id: Any  # VARCHAR
    run: Any  # VARCHAR
    number: Any  # BIGINT
    opened_at: Any  # TIMESTAMP WITH TIME ZONE
    opened_step: Any  # BIGINT
    since_step: Any  # BIGINT
    cause: Any  # VARCHAR
    closed_at: Any  # TIMESTAMP WITH TIME ZONE
    closed_step: Any  # BIGINT
    healthy: Any  # BIGINT
    seen: Any  # BIGINT

def incident_list(source: Source, /, *, runs: Any) -> Rows[IncidentList]: ...

class IncidentOf(TypedDict):
    incident: Any  # VARCHAR

def incident_of(source: Source, /, *, episode: Any, run: Any) -> Rows[IncidentOf]: ...

class IncidentParts(TypedDict):
    what: Any  # VARCHAR
    value: Any  # VARCHAR
    first: Any  # BIGINT
    last: Any  # BIGINT

def incident_parts(source: Source, /, *, first: Any, last: Any, run: Any) -> Rows[IncidentParts]: ...

class IncidentShow(TypedDict):
    id: Any  # VARCHAR
    run: Any  # VARCHAR
    number: Any  # BIGINT
    opened_at: Any  # TIMESTAMP WITH TIME ZONE
    opened_step: Any  # BIGINT
    since_step: Any  # BIGINT
    cause: Any  # VARCHAR
    closed_at: Any  # TIMESTAMP WITH TIME ZONE
    closed_step: Any  # BIGINT
    diagnosed_at: Any  # TIMESTAMP WITH TIME ZONE
    document: Any  # VARCHAR
    told: Any  # BOOLEAN

def incident_show(source: Source, /, *, incident: Any) -> Rows[IncidentShow]: ...

class Judgements(TypedDict):
    run: Any  # VARCHAR
    newest_step: Any  # BIGINT
    unjudged_at: Any  # TIMESTAMP WITH TIME ZONE
    steps_behind: Any  # BIGINT
    judged_step: Any  # BIGINT
    diagnosed_at: Any  # TIMESTAMP WITH TIME ZONE
    verdict: Any  # VARCHAR
    since_step: Any  # BIGINT
    cause: Any  # VARCHAR
    share: Any  # DOUBLE
    urgency: Any  # VARCHAR
    advice: Any  # VARCHAR
    level: Any  # VARCHAR
    spooled_at: Any  # TIMESTAMP WITH TIME ZONE
    alerts: Any  # STRUCT("rule" VARCHAR, severity VARCHAR, started_step BIGINT, started_at TIMESTAMP WITH TIME ZONE, muted VARCHAR, acknowledged_by VARCHAR)[]

def judgements(source: Source, /, *, runs: Any) -> Rows[Judgements]: ...

class KnownLevels(TypedDict):
    run: Any  # VARCHAR
    low: Any  # DOUBLE
    high: Any  # DOUBLE

def known_levels(source: Source, /, *, run: Any, setup: Any) -> Rows[KnownLevels]: ...
def known_segments(source: Any, incoming: Any = ..., /) -> Rows[dict[str, Any]]: ...
def live_parts(source: Any, incoming: Any = ..., /) -> Rows[dict[str, Any]]: ...

class MetricsNewest(TypedDict):
    run: Any  # VARCHAR
    metric: Any  # VARCHAR
    value: Any  # DOUBLE

def metrics_newest(source: Source, /, *, keys: Any, runs: Any) -> Rows[MetricsNewest]: ...

class MetricsRuns(TypedDict):
    run: Any  # VARCHAR
    last_at: Any  # DOUBLE
    step: Any  # BIGINT
    lost_sequences: Any  # BIGINT
    lost_tokens: Any  # BIGINT

def metrics_runs(source: Source, /, *, hours: Any) -> Rows[MetricsRuns]: ...

class NodesFurthest(TypedDict):
    run: Any  # VARCHAR
    nodes: Any  # BIGINT
    segments: Any  # BIGINT
    bytes: Any  # BIGINT
    behind_seconds: Any  # DOUBLE
    silent_seconds: Any  # DOUBLE

def nodes_furthest(source: Source, /, *, runs: Any) -> Rows[NodesFurthest]: ...

class NodesOf(TypedDict):
    node: Any  # VARCHAR
    seen_at: Any  # TIMESTAMP WITH TIME ZONE
    silent_seconds: Any  # DOUBLE
    segments: Any  # BIGINT
    bytes: Any  # BIGINT
    behind_seconds: Any  # DOUBLE
    clock_ahead_seconds: Any  # DOUBLE
    version: Any  # VARCHAR
    problem: Any  # VARCHAR

def nodes_of(source: Source, /, *, now: Any, run: Any) -> Rows[NodesOf]: ...

class OutboxChannels(TypedDict):
    channel: Any  # VARCHAR
    sent: Any  # BIGINT
    waiting: Any  # BIGINT
    dead: Any  # BIGINT
    last_sent_at: Any  # TIMESTAMP WITH TIME ZONE
    last_error: Any  # VARCHAR
    next_at: Any  # TIMESTAMP WITH TIME ZONE

def outbox_channels(source: Source, /) -> Rows[OutboxChannels]: ...

class OutboxDeadLetters(TypedDict):
    key: Any  # VARCHAR
    channel: Any  # VARCHAR
    run: Any  # VARCHAR
    rule: Any  # VARCHAR
    episode: Any  # VARCHAR
    state: Any  # VARCHAR
    severity: Any  # VARCHAR
    step: Any  # BIGINT
    time: Any  # TIMESTAMP WITH TIME ZONE
    attempts: Any  # INTEGER
    last_error: Any  # VARCHAR
    finished_at: Any  # TIMESTAMP WITH TIME ZONE

def outbox_dead_letters(source: Source, /, *, now: Any) -> Rows[OutboxDeadLetters]: ...

class OutboxDue(TypedDict):
    key: Any  # VARCHAR
    attempts: Any  # INTEGER
    uncertain_since: Any  # TIMESTAMP WITH TIME ZONE
    last_error: Any  # VARCHAR
    document: Any  # VARCHAR
    enqueued_at: Any  # TIMESTAMP WITH TIME ZONE
    thread: Any  # VARCHAR
    overtaken: Any  # BOOLEAN

def outbox_due(source: Source, /, *, channel: Any, latest: Any, now: Any) -> Rows[OutboxDue]: ...

class OutboxUnrouted(TypedDict):
    key: Any  # VARCHAR
    severity: Any  # VARCHAR
    document: Any  # VARCHAR

def outbox_unrouted(source: Source, /, *, limit: Any) -> Rows[OutboxUnrouted]: ...
def past_alike(source: Any, incoming: Any = ..., /, *, run: Any) -> Rows[dict[str, Any]]: ...
def past_alike_steps(source: Any, incoming: Any = ..., /, *, run: Any) -> Rows[dict[str, Any]]: ...

class PastEnds(TypedDict):
    last: Any  # BIGINT
    wall: Any  # BIGINT

def past_ends(source: Source, /, *, run: Any) -> Rows[PastEnds]: ...
def past_files(source: Any, incoming: Any = ..., /) -> Rows[dict[str, Any]]: ...

class PastFrozen(TypedDict):
    step: Any  # BIGINT
    time: Any  # BIGINT

def past_frozen(source: Source, /, *, run: Any) -> Rows[PastFrozen]: ...
def past_keyed(source: Any, incoming: Any = ..., /, *, run: Any) -> Rows[dict[str, Any]]: ...

class PastLabels(TypedDict):
    step: Any  # BIGINT
    version: Any  # VARCHAR

def past_labels(source: Source, /, *, run: Any) -> Rows[PastLabels]: ...

class PastLast(TypedDict):
    writer: Any  # VARCHAR
    last: Any  # BIGINT

def past_last(source: Source, /, *, run: Any) -> Rows[PastLast]: ...
def past_named(source: Any, incoming: Any = ..., /, *, run: Any) -> Rows[dict[str, Any]]: ...

class PastNames(TypedDict):
    name: Any  # VARCHAR
    step: Any  # BIGINT

def past_names(source: Source, /, *, run: Any) -> Rows[PastNames]: ...
def past_parts(source: Any, incoming: Any = ..., /, *, run: Any) -> Rows[dict[str, Any]]: ...

class PastReached(TypedDict):
    run: Any  # VARCHAR
    sample_id: Any  # VARCHAR
    segment_id: Any  # VARCHAR
    row: Any  # INTEGER
    request_id: Any  # VARCHAR
    group_id: Any  # VARCHAR
    replica: Any  # VARCHAR
    time: Any  # TIMESTAMP WITH TIME ZONE
    n_tokens: Any  # INTEGER
    n_logprobs: Any  # INTEGER
    logprob_sum: Any  # DOUBLE
    token_hash: Any  # UBIGINT
    spans: Any  # STRUCT("start" INTEGER, "end" INTEGER, "version" VARCHAR)[]
    prompt_length: Any  # INTEGER
    prompt_hash: Any  # VARCHAR
    cached_prefix_tokens: Any  # INTEGER
    finish_reason: Any  # VARCHAR
    sampling_id: Any  # VARCHAR
    engine_config_id: Any  # VARCHAR
    route_layers: Any  # INTEGER
    trajectory: Any  # VARCHAR
    logprobs: Any  # FLOAT[]
    parts: Any  # STRUCT(sample_id VARCHAR, segment_id VARCHAR, "row" INTEGER, "start" INTEGER, "end" INTEGER, prompt_length INTEGER, cached_prefix_tokens INTEGER, "replica" VARCHAR, finish_reason VARCHAR)[]
    adapter: Any  # VARCHAR
    adapter_id: Any  # BIGINT
    decisions: Any  # STRUCT("end" INTEGER, "at" BIGINT, "first" BIGINT, "last" BIGINT)[]
    machine: Any  # VARCHAR
    clock_offset: Any  # BIGINT
    clock_set: Any  # BIGINT
    engine_spans: Any  # STRUCT("start" INTEGER, "end" INTEGER, "version" VARCHAR)[]
    engine_started: Any  # BIGINT
    kept: Any  # BOOLEAN

def past_reached(source: Source, /, *, moment: Any, run: Any, wall: Any) -> Rows[PastReached]: ...

class PastRuns(TypedDict):
    run: Any  # VARCHAR

def past_runs(source: Source, /, *, runs: Any) -> Rows[PastRuns]: ...

class PastSampled(TypedDict):
    name: Any  # VARCHAR
    step: Any  # INTEGER

def past_sampled(source: Source, /, *, run: Any) -> Rows[PastSampled]: ...

class PastSigns(TypedDict):
    writer: Any  # VARCHAR
    event: Any  # VARCHAR
    time: Any  # BIGINT
    step: Any  # BIGINT
    details: Any  # VARCHAR

def past_signs(source: Source, /, *, run: Any) -> Rows[PastSigns]: ...
def past_statistics(source: Any, incoming: Any = ..., /, *, run: Any) -> Rows[dict[str, Any]]: ...

class PastSteps(TypedDict):
    step: Any  # BIGINT
    begun: Any  # BIGINT
    newest: Any  # BIGINT
    met: Any  # BOOLEAN
    by_tokens: Any  # BOOLEAN

def past_steps(source: Source, /, *, run: Any) -> Rows[PastSteps]: ...
def past_told(source: Any, incoming: Any = ..., /, *, run: Any) -> Rows[dict[str, Any]]: ...
def past_trained(source: Any, incoming: Any = ..., /, *, run: Any) -> Rows[dict[str, Any]]: ...

class PastWeights(TypedDict):
    run: Any  # VARCHAR
    segment_id: Any  # VARCHAR
    row: Any  # INTEGER
    version: Any  # VARCHAR
    step: Any  # BIGINT
    source: Any  # VARCHAR
    replica: Any  # VARCHAR
    machine: Any  # VARCHAR
    moment: Any  # BIGINT
    seen: Any  # STRUCT(began BIGINT, ended BIGINT, decided BIGINT, clock_offset BIGINT, clock_set BIGINT, engine_started BIGINT)
    unless: Any  # STRUCT(since BIGINT, "until" BIGINT)
    adapter: Any  # VARCHAR
    time: Any  # TIMESTAMP WITH TIME ZONE
    requested_at: Any  # TIMESTAMP WITH TIME ZONE
    started_at: Any  # TIMESTAMP WITH TIME ZONE
    applied_at: Any  # TIMESTAMP WITH TIME ZONE
    resumed_at: Any  # TIMESTAMP WITH TIME ZONE

def past_weights(source: Source, /, *, run: Any) -> Rows[PastWeights]: ...

class PeerTokens(TypedDict):
    step: Any  # BIGINT
    segment_id: Any  # VARCHAR
    row: Any  # INTEGER
    mask: Any  # BOOLEAN[]
    rollout: Any  # DOUBLE[]
    trainer: Any  # DOUBLE[]
    current: Any  # DOUBLE[]
    reference: Any  # DOUBLE[]
    advantage: Any  # DOUBLE[]

def peer_tokens(
    source: Source, /, *, first: Any, last: Any, run: Any, rollout_files: Any = ..., training_files: Any = ...
) -> Rows[PeerTokens]: ...

class ProfileDue(TypedDict):
    run: Any  # VARCHAR
    step: Any  # BIGINT
    revision: Any  # BIGINT
    profiled: Any  # BIGINT

def profile_due(source: Source, /, *, resting: Any, steps: Any, tokens: Any) -> Rows[ProfileDue]: ...
def profile_parts(source: Any, incoming: Any = ..., /) -> Rows[dict[str, Any]]: ...

class ProfileRead(TypedDict):
    bucket: Any  # INTEGER
    tokens: Any  # BIGINT
    logprob_abs_diff_mean: Any  # DOUBLE
    log_ratio_mean: Any  # DOUBLE
    k3_kl: Any  # DOUBLE

def profile_read(
    source: Source, /, *, dimension: Any, first: Any, last: Any, pair: Any, run: Any
) -> Rows[ProfileRead]: ...
def profile_sequences(source: Any, incoming: Any = ..., /) -> Rows[dict[str, Any]]: ...

class ProofCheckpoints(TypedDict):
    version: Any  # VARCHAR
    checkpoint: Any  # VARCHAR

def proof_checkpoints(source: Source, /, *, run: Any) -> Rows[ProofCheckpoints]: ...

class ProofImported(TypedDict):
    step: Any  # BIGINT
    sample_id: Any  # VARCHAR
    token_ids: Any  # INTEGER[]
    mask: Any  # BOOLEAN[]
    rollout_logprobs: Any  # FLOAT[]
    trainer_logprobs: Any  # FLOAT[]
    weight_version: Any  # VARCHAR

def proof_imported(
    source: Source, /, *, most: Any, run: Any, step: Any, training_files: Any = ...
) -> Rows[ProofImported]: ...

class ProofSequences(TypedDict):
    step: Any  # BIGINT
    sample_id: Any  # VARCHAR
    prompt_ids: Any  # INTEGER[]
    response_ids: Any  # INTEGER[]
    engine_logprobs: Any  # FLOAT[]
    rollout_logprobs: Any  # FLOAT[]
    trainer_logprobs: Any  # FLOAT[]
    mask: Any  # BOOLEAN[]
    alignment: Any  # VARCHAR
    spans: Any  # STRUCT("start" INTEGER, "end" INTEGER, "version" VARCHAR)[]
    trainer_version: Any  # VARCHAR
    sampling: Any  # VARCHAR
    engine_config_id: Any  # VARCHAR
    replica: Any  # VARCHAR

def proof_sequences(
    source: Source, /, *, most: Any, run: Any, step: Any, rollout_files: Any = ..., training_files: Any = ...
) -> Rows[ProofSequences]: ...

class PushSteps(TypedDict):
    step: Any  # BIGINT
    time: Any  # TIMESTAMP WITH TIME ZONE
    metric: Any  # VARCHAR
    value: Any  # DOUBLE

def push_steps(source: Source, /, *, after: Any, count: Any, run: Any, up_to: Any) -> Rows[PushSteps]: ...

class QuarantineList(TypedDict):
    path: Any  # VARCHAR
    origin: Any  # VARCHAR
    run: Any  # VARCHAR
    reason: Any  # VARCHAR
    message: Any  # VARCHAR
    bytes: Any  # BIGINT
    moved_at: Any  # TIMESTAMP WITH TIME ZONE

def quarantine_list(source: Source, /, *, run: Any) -> Rows[QuarantineList]: ...

class RawFiles(TypedDict):
    path: Any  # VARCHAR
    run: Any  # VARCHAR
    kind: Any  # VARCHAR
    rows: Any  # BIGINT
    bytes: Any  # BIGINT
    created_at: Any  # TIMESTAMP WITH TIME ZONE

def raw_files(source: Source, /) -> Rows[RawFiles]: ...

class RawPlaces(TypedDict):
    kind: Any  # VARCHAR
    path: Any  # VARCHAR

def raw_places(source: Source, /, *, first: Any, last: Any, run: Any, segments: Any) -> Rows[RawPlaces]: ...

class RunsNow(TypedDict):
    run: Any  # VARCHAR
    last_arrival: Any  # TIMESTAMP WITH TIME ZONE
    step: Any  # BIGINT
    newest_computed_at: Any  # TIMESTAMP WITH TIME ZONE
    revision: Any  # BIGINT
    trained_step: Any  # BIGINT
    made_at: Any  # TIMESTAMP WITH TIME ZONE
    live_until: Any  # TIMESTAMP WITH TIME ZONE
    dated_ahead: Any  # DOUBLE
    returned_to: Any  # BIGINT[]
    resumed_step: Any  # BIGINT

def runs_now(source: Source, /) -> Rows[RunsNow]: ...

class SliceSequences(TypedDict):
    sequence: Any  # BIGINT
    step: Any  # BIGINT
    rank: Any  # INTEGER
    replica: Any  # VARCHAR
    adapter: Any  # VARCHAR
    finish_reason: Any  # VARCHAR
    cached_prefix_tokens: Any  # INTEGER
    tags: Any  # MAP(VARCHAR, VARCHAR)
    sequence_tokens: Any  # INTEGER
    reward: Any  # DOUBLE
    advantage_abs_sum: Any  # DOUBLE
    entropy_sum: Any  # DOUBLE
    entropy_n: Any  # INTEGER
    token_match: Any  # BOOLEAN
    length_match: Any  # BOOLEAN
    routes_match: Any  # BOOLEAN
    routes_expected: Any  # BIGINT
    routes_compared: Any  # BIGINT
    routes_equal: Any  # BIGINT
    versions_compared: Any  # BIGINT
    versions_differing: Any  # BIGINT
    trainer_version: Any  # VARCHAR
    versions: Any  # STRUCT("version" VARCHAR, tokens DOUBLE)[]
    pair: Any  # VARCHAR
    n: Any  # BIGINT
    n_expected: Any  # BIGINT
    sum_d: Any  # DOUBLE
    sum_d2: Any  # DOUBLE
    sum_abs_d: Any  # DOUBLE
    sum_ratio_m1: Any  # DOUBLE
    sum_ratio_m1_sq: Any  # DOUBLE
    sum_k3: Any  # DOUBLE
    sum_reverse_kl: Any  # DOUBLE
    sum_abs_prob_diff: Any  # DOUBLE
    sum_exp_abs_d: Any  # DOUBLE
    min_d: Any  # DOUBLE
    max_d: Any  # DOUBLE
    sum_policy: Any  # DOUBLE
    sum_behaviour: Any  # DOUBLE
    sum_policy2: Any  # DOUBLE
    sum_behaviour2: Any  # DOUBLE
    sum_policy_behaviour: Any  # DOUBLE
    sum_policy_prob: Any  # DOUBLE
    sum_behaviour_prob: Any  # DOUBLE
    sum_policy_prob2: Any  # DOUBLE
    sum_behaviour_prob2: Any  # DOUBLE
    sum_policy_behaviour_prob: Any  # DOUBLE
    n_positive_d: Any  # BIGINT
    n_negative_d: Any  # BIGINT
    n_zero_d: Any  # BIGINT
    n_above: Any  # BIGINT
    n_below: Any  # BIGINT
    n_clamped: Any  # BIGINT
    n_advantage: Any  # BIGINT
    n_pg_clipped: Any  # BIGINT
    n_zero_policy: Any  # BIGINT
    n_nonfinite_behaviour: Any  # BIGINT
    n_nonfinite_policy: Any  # BIGINT
    n_sentinel_behaviour: Any  # BIGINT
    n_sentinel_policy: Any  # BIGINT
    n_positive_behaviour: Any  # BIGINT
    n_positive_policy: Any  # BIGINT
    n_zero_behaviour: Any  # BIGINT

def slice_sequences(source: Source, /, *, first: Any, last: Any, run: Any) -> Rows[SliceSequences]: ...

class UserActionsOf(TypedDict):
    time: Any  # TIMESTAMP WITH TIME ZONE
    author: Any  # VARCHAR
    action: Any  # VARCHAR
    subject: Any  # VARCHAR
    words: Any  # VARCHAR

def user_actions_of(source: Source, /, *, run: Any) -> Rows[UserActionsOf]: ...

class VersionConflicts(TypedDict):
    run: Any  # VARCHAR
    compared: Any  # BIGINT
    differing: Any  # BIGINT
    engine_older: Any  # BIGINT
    engine_newer: Any  # BIGINT
    first_step: Any  # BIGINT
    last_step: Any  # BIGINT

def version_conflicts(source: Source, /, *, first: Any, last: Any, run: Any) -> Rows[VersionConflicts]: ...
