-- Objects to be removed, oldest first. Grain: object. Inputs: doomed_objects.
SELECT url, since FROM doomed_objects ORDER BY since, url
