# SPDX-License-Identifier: GPL-2.0-only
"""Simulates the points of a sweep on a Ray cluster: 'baton sim sweep --ray ADDRESS' runs it.

Reads {"program", "jobs"} from standard input; writes a line of JSON for each point as it
ends. The program travels to the machines, which must have the same architecture and a C library that is
not older.
"""

import hashlib
import json
import re
import socket
import sys

try:
    import ray
except ImportError:
    sys.exit("this Python has no module ray: pip install ray, or name another one with PYTHON=…")


def simulate(program, digest, job):
    import os
    import subprocess
    import tempfile

    # Nobody else may put a program there.
    home = os.path.join(os.path.expanduser("~"), ".cache", "baton", "ray")
    os.makedirs(home, mode=0o700, exist_ok=True)
    path = os.path.join(home, digest)
    if not os.path.exists(path):
        handle, part = tempfile.mkstemp(dir=home)
        with os.fdopen(handle, "wb") as file:
            file.write(program)
        os.chmod(part, 0o700)
        os.rename(part, path)
    ended = subprocess.run([path, "sim", "apart"], input=job, text=True, capture_output=True)
    if ended.stdout:
        return ended.stdout
    lines = ended.stderr.strip().splitlines() or [f"status {ended.returncode}"]
    return json.dumps({"error": lines[-1].removeprefix("baton sim: ")})


def reachable(address):
    """Ray itself tries for many minutes."""
    match = re.fullmatch(r"(?:ray://)?\[?([^\[\]/]+?)\]?:(\d+)", address)
    if not match:
        return
    try:
        socket.create_connection((match[1], int(match[2])), timeout=5).close()
    except (OSError, OverflowError) as error:
        sys.exit(f"no Ray cluster at {address}: {error}")


def main():
    address = sys.argv[1]
    reachable(address)
    job = json.load(sys.stdin)
    with open(job["program"], "rb") as file:
        program = file.read()
    digest = hashlib.sha256(program).hexdigest()
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except Exception as error:
        why = str(error).strip().splitlines()
        sys.exit(f"no Ray cluster at {address}: {why[0] if why else type(error).__name__}")
    program = ray.put(program)
    remote = ray.remote(num_cpus=1, max_retries=3)(simulate)
    # So many at once keep the machines busy, and no list of a million.
    most = 4 * max(1, int(ray.cluster_resources().get("CPU", 1)))
    running, points = {}, iter(enumerate(job["jobs"]))
    while True:
        while len(running) < most and (entry := next(points, None)):
            running[remote.remote(program, digest, json.dumps(entry[1]))] = entry[0]
        if not running:
            break
        (first, *_), _ = ray.wait(list(running), num_returns=1)
        place = running.pop(first)
        try:
            answer = ray.get(first)
        except Exception as error:
            answer = json.dumps({"error": f"Ray: {str(error).strip().splitlines()[-1]}"})
        print(json.dumps({"place": place, "answer": answer}), flush=True)


main()
