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
    routed_at   TIMESTAMPTZ               -- null: no deliveries were made of it yet
);

CREATE TABLE deliveries (
    key             VARCHAR NOT NULL,     -- notifications.key
    channel         VARCHAR NOT NULL,     -- its name in channels.yaml
    status          VARCHAR NOT NULL DEFAULT 'waiting',  -- waiting | sent | dead
    attempts        INTEGER NOT NULL DEFAULT 0,
    next_at         TIMESTAMPTZ NOT NULL, -- not to be tried before
    uncertain_since TIMESTAMPTZ,          -- an attempt began then of which it is not known whether the message arrived
    last_error      VARCHAR,              -- of the newest failed attempt; never holds a secret
    receipt         VARCHAR,              -- JSON: where the message is, as the channel names it
    finished_at     TIMESTAMPTZ,
    PRIMARY KEY (key, channel)
);
