"""Program: a Ray cluster on this machine, which ends with the process that started the program.

Arguments: the number of CPUs of each node.
"""

import os
import sys
import time

from ray.cluster_utils import Cluster

from benchmarks.records import record

if __name__ == "__main__":
    harness = os.getppid()
    head, *others = map(int, sys.argv[1:])
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": head, "include_dashboard": False}
    )
    for cpus in others:
        cluster.add_node(num_cpus=cpus)
    record("runs", address=cluster.address)
    while os.getppid() == harness:
        time.sleep(1)
    cluster.shutdown()
