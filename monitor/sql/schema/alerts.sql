-- Alerts, their notifications, corrections, incidents, and notes on runs.

-- Alerts: how each stands, and what users did about them. A run's alerts and the notifications that follow are written in one
-- transaction.

-- One row per run and rule: `judgement`, `liveness`, or a threshold. `document` is what the next look goes on from.
CREATE TABLE alert_states (
    run         VARCHAR NOT NULL,
    rule        VARCHAR NOT NULL,
    fingerprint VARCHAR NOT NULL,         -- of the threshold; "": there is none
    phase       VARCHAR NOT NULL,         -- normal | pending | firing | recovering
    severity    VARCHAR NOT NULL,
    episode     VARCHAR,                  -- newest one that a notification was sent of
    told        BOOLEAN NOT NULL,         -- whether the newest notification said that it fires
    muted       VARCHAR,                  -- why no notification is sent of an alert that fires
    step        BIGINT,                   -- newest one looked at
    started_step BIGINT,                  -- of the episode
    changed_at  TIMESTAMPTZ,              -- when the level became what it is
    value       DOUBLE,
    words       VARCHAR,                  -- what was seen last
    document    VARCHAR NOT NULL,         -- JSON
    PRIMARY KEY (run, rule)
);

-- What users did, beside the correction's own audit: a row for each action, only ever appended to. What is in force follows from the rows: an
-- acknowledgement as long as its episode lasts, a silence until it expires or is ended, an acceptance until the next action on that cause in these runs.
CREATE SEQUENCE user_action_numbers;
CREATE TABLE user_actions (
    number BIGINT PRIMARY KEY DEFAULT nextval('user_action_numbers'),
    time   TIMESTAMPTZ NOT NULL,
    author VARCHAR NOT NULL,
    action VARCHAR NOT NULL,              -- acknowledged | silenced | silence ended | finding accepted | acceptance withdrawn | run deleted | …
    key    VARCHAR,                       -- an episode, the id of a silence, a deleted run: asked for twice, it is done once; null: done each time
    runs   VARCHAR,                       -- a name, or a pattern of names; null: about no run. The audit outlives the run: deletion looks for `run`
    what   VARCHAR,                       -- a pattern of rules, a cause, a channel, a file; null: what `key` names
    until  TIMESTAMPTZ,                   -- of a silence
    up_to  DOUBLE,                        -- of an acceptance: K3 that the cause may explain
    words  VARCHAR NOT NULL,              -- why, or what changed
    UNIQUE (action, key)
);
CREATE VIEW acknowledgements AS SELECT runs AS run, key AS episode, author, words AS reason FROM user_actions WHERE action = 'acknowledged';

-- The outbox of alerts. A notification is written in the transaction of the state transition that it tells of; the sender makes one
-- delivery of it per channel that wants it, and records what became of each.
CREATE SEQUENCE notification_numbers;

CREATE TABLE notifications (
    key         VARCHAR PRIMARY KEY,      -- idempotency key: one per transition of an episode
    number      BIGINT NOT NULL DEFAULT nextval('notification_numbers'),  -- in the order of the transitions
    run         VARCHAR NOT NULL,
    rule        VARCHAR NOT NULL,
    episode     VARCHAR NOT NULL,
    state       VARCHAR NOT NULL,
    severity    VARCHAR NOT NULL,
    step        BIGINT,
    time        TIMESTAMPTZ NOT NULL,     -- of the transition
    document    VARCHAR NOT NULL,         -- the whole notification, JSON
    enqueued_at TIMESTAMPTZ NOT NULL DEFAULT now(),
    routed_at   TIMESTAMPTZ,              -- null: no deliveries were made of it yet
    incident    VARCHAR                   -- incidents.id; its messages share a thread
);

CREATE TABLE deliveries (
    run             VARCHAR NOT NULL,
    key             VARCHAR NOT NULL,     -- notifications.key
    channel         VARCHAR NOT NULL,     -- its name in channels.yaml
    status          VARCHAR NOT NULL DEFAULT 'waiting',  -- waiting | sent | dead (given up)
    attempts        INTEGER NOT NULL DEFAULT 0,
    next_at         TIMESTAMPTZ NOT NULL, -- not to be tried before
    uncertain_since TIMESTAMPTZ,          -- an attempt began then of which it is not known whether the message arrived
    last_error      VARCHAR,              -- of the newest failed attempt; never holds a secret
    receipt         VARCHAR,              -- JSON: where the message is, as the channel names it
    finished_at     TIMESTAMPTZ,
    PRIMARY KEY (key, channel)
);

-- What the correction controller remembers of each run: its state, and the directives the trainer was given. The directive file in
-- the home is written from here.
CREATE TABLE controllers (
    run        VARCHAR PRIMARY KEY,
    control    VARCHAR NOT NULL,          -- JSON, see logprobe.alerts.controller.situation.Control
    directives VARCHAR NOT NULL,          -- JSON, see logprobe.collectors.directives.Directives
    updated_at TIMESTAMPTZ NOT NULL
);

-- The audit: everything the controller did, declined to do, or was told to do. Only ever appended to.
CREATE TABLE controller_actions (
    run      VARCHAR NOT NULL,
    number   BIGINT NOT NULL,             -- 1, 2, 3 … within the run
    step     BIGINT,                      -- newest step with metrics then
    time     TIMESTAMPTZ NOT NULL,
    name     VARCHAR NOT NULL,            -- suggested | switched_on | refused | acknowledged | rolled_back | effect | …
    reason   VARCHAR NOT NULL,
    words    VARCHAR NOT NULL,
    severity VARCHAR NOT NULL,            -- info | warning | critical
    details  VARCHAR NOT NULL,            -- JSON
    PRIMARY KEY (run, number)
);

-- Incidents: opened when a run becomes critical, closed once it was healthy for long. Written in the transaction of the alerts that they
-- follow from.
CREATE TABLE incidents (
    id           VARCHAR PRIMARY KEY,     -- run, "#", number
    run          VARCHAR NOT NULL,
    number       BIGINT NOT NULL,         -- 1 for the run's first
    opened_at    TIMESTAMPTZ NOT NULL,
    opened_step  BIGINT,                  -- newest step then
    since_step   BIGINT,                  -- onset, by the diagnosis or else by the alert
    healthy      BIGINT NOT NULL,         -- steps in a row that the run has been healthy
    seen         BIGINT,                  -- step of the last look, if the run was healthy then
    closed_at    TIMESTAMPTZ,
    closed_step  BIGINT,
    cause        VARCHAR,                 -- of `document`
    diagnosed_at TIMESTAMPTZ,             -- of `document`
    document     VARCHAR                  -- JSON: the newest diagnosis of the trouble; a later healthy one does not replace it
);
