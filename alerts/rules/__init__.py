"""What is judged, and when people are notified: rules, states, mutes, the job, trying rules out."""
