-- What people did about alerts, beside the correction's own audit: written with what was done, and only ever appended to.
CREATE SEQUENCE alert_audit_numbers;
CREATE TABLE alert_audit (
    number  BIGINT PRIMARY KEY DEFAULT nextval('alert_audit_numbers'),
    time    TIMESTAMPTZ NOT NULL,
    author  VARCHAR NOT NULL,
    action  VARCHAR NOT NULL,             -- acknowledged | snoozed | silenced | rule saved | sent again | …
    subject VARCHAR NOT NULL,             -- an episode, a rule, a silence, a channel
    words   VARCHAR NOT NULL              -- what changed, or why
);

-- An acknowledgement for some time is a snooze: when it is over and the alert still fires, people are told again.
ALTER TABLE alert_acknowledgements ADD COLUMN until TIMESTAMPTZ;  -- null: as long as the episode lasts

-- A delivery that was given up can also be dropped by a person: deliveries.status is then 'dropped'.
