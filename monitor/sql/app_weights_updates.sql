-- How new weights arrive: the trainer's publications and each engine's updates in $run. Grain: lane ("trainer", or an engine's replica),
-- the trainer first; one of whose versions none is known has no newest one. Inputs: weight_records. Parameters: $run.
-- `place`: of a version among all of the run, by number where all are whole numbers, else in the order of publication. Of several records
-- of a lane about one version the first counts, the others are reloads. `skipped`: versions between one and the one before that never
-- arrived, beyond what is usual for the lane (its median stride). Durations are in seconds, null where a time is unknown.
WITH records AS (
    SELECT version, source, CASE WHEN source = 'engine' THEN replica END AS replica, requested_at, started_at, applied_at,
           resumed_at, pause_mode, cache_cleared, coalesce(applied_at, resumed_at, time) AS arrived_at
    FROM weight_records WHERE run = $run
), versions AS (
    SELECT version, coalesce(min(arrived_at) FILTER (source = 'trainer'), min(arrived_at)) AS published_at,
           min(least(requested_at, started_at)) FILTER (source = 'trainer') AS begun_at
    FROM records WHERE version IS NOT NULL GROUP BY version
), placed AS (
    SELECT *, row_number() OVER (ORDER BY if(numbered, try_cast(version AS BIGINT), NULL), published_at, version) AS place
    FROM (SELECT *, bool_and(regexp_full_match(version, '[+-]?[0-9]{1,15}')) OVER () AS numbered FROM versions)
), arrivals AS (
    SELECT r.source, r.replica, r.version, p.place, r.arrived_at, r.pause_mode, r.cache_cleared,
           r.started_at IS NOT NULL AS loaded,
           (epoch_us(r.arrived_at) - epoch_us(least(r.requested_at, r.started_at, p.begun_at))) / 1e6 AS delay,
           (epoch_us(r.resumed_at) - epoch_us(r.requested_at)) / 1e6 AS pause,
           count(*) OVER repeats - 1 AS reloads
    FROM records AS r JOIN placed AS p USING (version)
    WINDOW repeats AS (PARTITION BY r.source, r.replica, r.version)
    QUALIFY row_number() OVER (PARTITION BY r.source, r.replica, r.version ORDER BY r.arrived_at) = 1
), strides AS (
    SELECT *, place - lag(place) OVER (PARTITION BY source, replica ORDER BY arrived_at, place) AS stride FROM arrivals
), usual AS (
    SELECT source, replica, coalesce(quantile_disc(stride, 0.5) FILTER (stride > 0), 1) AS stride FROM strides GROUP BY source, replica
), judged AS (
    SELECT s.* EXCLUDE (delay, pause), if(s.delay >= 0, s.delay, NULL) AS delay, if(s.pause >= 0, s.pause, NULL) AS pause,
           s.stride < 0 AS backwards, if(s.stride > u.stride, s.stride - u.stride, 0)::BIGINT AS skipped
    FROM strides AS s JOIN usual AS u ON u.source = s.source AND u.replica IS NOT DISTINCT FROM s.replica
), unknown AS (
    SELECT source, replica, count(*) AS unknown FROM records WHERE version IS NULL GROUP BY source, replica
), totals AS (
    SELECT source, replica, count(*) AS updates, max(place) AS newest_place, max(arrived_at) AS last_update,
           arg_max(version, place) AS newest_version, sum(skipped)::BIGINT AS all_skipped, count(*) FILTER (backwards) AS all_backwards,
           -- The first version of a lane was there before anybody looked; a lane that never shows a load shows nothing.
           if(bool_or(loaded), count(*) FILTER (NOT loaded AND stride IS NOT NULL), 0) AS all_unloaded,
           sum(reloads)::BIGINT AS all_reloads, count(*) FILTER (cache_cleared) AS cleared,
           count(*) FILTER (NOT cache_cleared) AS kept, median(delay) AS usual_delay, max(delay) AS longest_delay,
           median(pause) AS usual_pause, max(pause) AS longest_pause, list(DISTINCT pause_mode) FILTER (pause_mode IS NOT NULL) AS pauses
    FROM judged GROUP BY source, replica
), newest AS (
    SELECT max(place) AS place FROM placed
), lanes AS (
    SELECT DISTINCT source, replica FROM records
)
SELECT l.source, l.replica, coalesce(t.updates, 0) AS updates, t.newest_version, n.place - t.newest_place AS behind,
       (SELECT count(*) FROM placed WHERE published_at > t.last_update) AS missed,
       coalesce(u.stride, 1) AS usual_stride, coalesce(t.all_skipped, 0) AS all_skipped, coalesce(t.all_backwards, 0) AS all_backwards,
       coalesce(t.all_unloaded, 0) AS all_unloaded, coalesce(t.all_reloads, 0) AS all_reloads, coalesce(t.cleared, 0) AS cleared,
       coalesce(t.kept, 0) AS kept, t.usual_delay, t.longest_delay, t.usual_pause, t.longest_pause, t.pauses,
       coalesce(x.unknown, 0) AS unknown
FROM lanes AS l CROSS JOIN newest AS n
LEFT JOIN totals AS t ON t.source = l.source AND t.replica IS NOT DISTINCT FROM l.replica
LEFT JOIN usual AS u ON u.source = l.source AND u.replica IS NOT DISTINCT FROM l.replica
LEFT JOIN unknown AS x ON x.source = l.source AND x.replica IS NOT DISTINCT FROM l.replica
ORDER BY l.source DESC, l.replica NULLS FIRST
