-- What a diagnosis comes to, beside its verdict: read for every run at once, where reading all documents would take too long.
ALTER TABLE diagnoses ADD COLUMN cause VARCHAR;   -- of the finding that people read first; null: none alarms
ALTER TABLE diagnoses ADD COLUMN share DOUBLE;    -- of K3 that it explains; null: not known
ALTER TABLE diagnoses ADD COLUMN urgency VARCHAR; -- of that finding
ALTER TABLE diagnoses ADD COLUMN advice VARCHAR;  -- enable | do_not_enable | not_needed
UPDATE diagnoses SET advice = document ->> '$.correction.advice',
                     cause = if(verdict IN ('growing', 'critical'), causes[1], NULL);
