"""Behind `search`: what fills the slots best on the data at hand, at no more latency than allowed."""
