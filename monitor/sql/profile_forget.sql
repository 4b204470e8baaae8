-- Takes back the profiles of the steps $steps of $run. Grain: bucket. Table: profiles.
DELETE FROM profiles
WHERE run = $run AND step BETWEEN list_min($steps) AND list_max($steps) AND step IN (SELECT unnest($steps))
