"""What is judged, and when people are told: rules, states, mutes, the job, trying rules out."""
