// SPDX-License-Identifier: GPL-2.0-only
//! Machines and scenarios that come with the simulator.

/// Machines that come with the simulator, each with the sources of its figures.
pub const MACHINES: [(&str, &str); 12] = [
    ("exact", include_str!("../../machines/exact.toml")),
    ("testbed", include_str!("../../machines/testbed.toml")),
    ("xeon-x7560", include_str!("../../machines/xeon-x7560.toml")),
    ("xeon-8", include_str!("../../machines/xeon-8.toml")),
    ("xeon-16", include_str!("../../machines/xeon-16.toml")),
    ("xeon-2014", include_str!("../../machines/xeon-2014.toml")),
    ("cascade-lake-96", include_str!("../../machines/cascade-lake-96.toml")),
    ("rome-192", include_str!("../../machines/rome-192.toml")),
    ("ryzen-16", include_str!("../../machines/ryzen-16.toml")),
    ("ice-lake-160", include_str!("../../machines/ice-lake-160.toml")),
    ("rome-256", include_str!("../../machines/rome-256.toml")),
    ("genoa-384", include_str!("../../machines/genoa-384.toml")),
];

/// Scenarios that come with the simulator.
pub const SCENARIOS: [(&str, &str); 28] = [
    ("crowded", include_str!("../../scenarios/crowded.toml")),
    ("call", include_str!("../../scenarios/call.toml")),
    ("file-server", include_str!("../../scenarios/file-server.toml")),
    ("call-bound", include_str!("../../scenarios/call-bound.toml")),
    ("io-threads", include_str!("../../scenarios/io-threads.toml")),
    ("long-sleep", include_str!("../../scenarios/long-sleep.toml")),
    ("vhost-crowd", include_str!("../../scenarios/vhost-crowd.toml")),
    ("weights-100", include_str!("../../scenarios/weights-100.toml")),
    ("testbed-shootdown", include_str!("../../scenarios/testbed-shootdown.toml")),
    ("testbed-hackbench", include_str!("../../scenarios/testbed-hackbench.toml")),
    ("testbed-pbzip2", include_str!("../../scenarios/testbed-pbzip2.toml")),
    ("exact-barrier", include_str!("../../scenarios/exact-barrier.toml")),
    ("exact-lock", include_str!("../../scenarios/exact-lock.toml")),
    ("testbed-barrier", include_str!("../../scenarios/testbed-barrier.toml")),
    ("testbed-lock", include_str!("../../scenarios/testbed-lock.toml")),
    ("scale-4x96", include_str!("../../scenarios/scale-4x96.toml")),
    ("sizes", include_str!("../../scenarios/sizes.toml")),
    ("two-barriers", include_str!("../../scenarios/two-barriers.toml")),
    ("big-300", include_str!("../../scenarios/big-300.toml")),
    ("big-partitions", include_str!("../../scenarios/big-partitions.toml")),
    ("big-threads", include_str!("../../scenarios/big-threads.toml")),
    ("attack-container", include_str!("../../scenarios/attack-container.toml")),
    ("attack-threads", include_str!("../../scenarios/attack-threads.toml")),
    ("attack-bound", include_str!("../../scenarios/attack-bound.toml")),
    ("attack-vms", include_str!("../../scenarios/attack-vms.toml")),
    ("attack-crowd", include_str!("../../scenarios/attack-crowd.toml")),
    ("attack-forks", include_str!("../../scenarios/attack-forks.toml")),
    ("attack-quotas", include_str!("../../scenarios/attack-quotas.toml")),
];
