"""`make bench`: the same work on Homing and on its peers, as ratios in one table."""
