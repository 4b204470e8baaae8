-- Steps that a later attempt of the run trained again: what earlier attempts recorded of them. Same columns as the tables that the newest
-- attempt is in, which alone count; see logprobe.monitor.analysis.attempts.
CREATE TABLE older_sequences AS FROM training_sequences LIMIT 0;
ALTER TABLE older_sequences ADD COLUMN writer VARCHAR;
ALTER TABLE older_sequences ADD COLUMN repeated_by VARCHAR;   -- the writer of the newest attempt at the step
ALTER TABLE older_sequences ADD COLUMN began TIMESTAMPTZ;     -- when that attempt began
CREATE TABLE older_statistics AS FROM statistics LIMIT 0;
CREATE TABLE older_step_records AS FROM step_records LIMIT 0;
