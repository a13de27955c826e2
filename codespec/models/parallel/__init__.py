"""One model over several processes: the group, its workers, and the layers that each holds a share of."""
