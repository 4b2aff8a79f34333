"""Training in a process beside the agent, which a task may end without ending the agent."""
