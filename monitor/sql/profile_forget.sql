-- Takes back profiles. Grain: bucket. Inputs: incoming (Arrow: run, step). Table: profiles.
DELETE FROM profiles AS p USING incoming AS i WHERE p.run = i.run AND p.step = i.step
