# SPDX-License-Identifier: GPL-2.0-only
# Guests by hand, for the tests in baton/tests/host/; runs in the emulated host's busybox shell.
#
#   vm NAME [QEMU OPTIONS]      starts a guest in the cgroup NAME and waits until it is up
#   work NAME SECONDS WORKLOAD  has it run a workload, in the background
#   rate NAME                   the rate it reported last (waits for it)
#   baton [OPTIONS]             starts scx_baton and waits until it is in charge
#   kill_vm NAME                ends a guest with SIGKILL
#   busy                        starts a task of the host that never sleeps
#   all_well                    ends with status 75 if a guest was lost that nobody killed
#
# Emulation loses a guest now and then, whatever schedules it. That is told apart by status 75
# (EX_TEMPFAIL of sysexits.h), and the test tried again.

RUN=${RUN:-/run/guests}
mkdir -p $RUN

ALIVE=

fail() { echo "FAIL: $*"; exit 1; }
# In $(...) the status is the subshell's: all_well repeats it.
lost() { echo "$*" >>$RUN/lost; echo "LOST: $*"; exit 75; }

# Waits until a command succeeds. QEMU on a busy machine is slow, so every wait is long: 5 minutes.
until_true() {
	tries=0
	until eval "$1"; do
		tries=$((tries + 1))
		[ $tries -lt 1500 ] || { ${2:-fail} "timed out waiting for: $1"; return 1; }
		sleep 0.2
	done
}

vm() {
	name=$1
	shift
	rm -f $RUN/$name.in
	mkfifo $RUN/$name.in
	: >$RUN/$name.log
	mkdir -p /sys/fs/cgroup/$name
	(
		echo 0 >/sys/fs/cgroup/$name/cgroup.procs
		exec "$@" qemu-system-x86_64 -accel kvm -cpu host -M microvm,rtc=on -nodefaults \
			-no-user-config -display none -no-reboot -name "$name,debug-threads=on" \
			-smp ${VCPUS:-2} -m 192 -kernel /guest/bzImage -initrd /guest/initrd \
			-append "console=ttyS0 quiet noxsave mitigations=off reboot=t panic=-1 rdinit=/init" \
			-chardev stdio,id=console,signal=off -serial chardev:console \
			<>$RUN/$name.in >$RUN/$name.log 2>$RUN/$name.err
	) &
	eval "pid_$name=$!"
	until_true "grep -q '@baton up' $RUN/$name.log" lost
	ALIVE="$ALIVE $name"
}

kill_vm() {
	kill -9 $(pid_of $1)
	still=
	for name in $ALIVE; do [ $name = $1 ] || still="$still $name"; done
	ALIVE=$still
}

all_well() {
	[ ! -s $RUN/lost ] || lost "$(cat $RUN/lost)"
	for name in $ALIVE; do
		kill -0 $(pid_of $name) 2>/dev/null || lost "guest $name is gone"
		grep -q 'Kernel panic\|Oops\|detected stall' $RUN/$name.log && lost "guest $name crashed"
	done
	true
}

pid_of() { eval "echo \$pid_$1"; }

work() {
	name=$1 seconds=$2
	shift 2
	words=
	for word in "$@"; do words="$words,\"$word\""; done
	: >$RUN/$name.log
	echo "@run 1 [\"baton-agent\",\"work\",\"--seconds\",\"$seconds\"$words]" >$RUN/$name.in
}

# The console brings a line byte by byte: an answer is whole at its closing brace.
rate() {
	until_true "grep -q '@baton \(done 1 .*}\|fail 1 \)' $RUN/$1.log" lost
	found=$(sed -n 's/.*@baton done 1 .*"rate":\([0-9.]*\).*}.*/\1/p' $RUN/$1.log)
	[ -n "$found" ] || lost "guest $1 tells no rate: $(grep '@baton' $RUN/$1.log)"
	echo $found
}

# Starts a task that wants a pCPU all the time; their PIDs are in $busy.
busy() {
	sh -c 'while :; do :; done' &
	busy="$busy $!"
}

state() { cat /sys/kernel/sched_ext/state; }

baton() {
	scx_baton "$@" >/run/baton.out 2>/run/baton.err &
	baton_pid=$!
	until_true '[ "$(state)" = enabled ] && grep -q "${BATON_READY:-watching KVM}" /run/baton.err'
}

# One line of statistics: two seconds. The first line only tells the time since the client came.
# The lines of the VMs are left out.
stats() {
	line=$(timeout 120 scx_baton --monitor 2 2>/dev/null |
		sed -n '/^\[/{x;s/^/x/;/^xx/{x;p;q};x}')
	[ -n "$line" ] || lost "no statistics in two minutes"
	echo "$line"
}

stop_baton() {
	kill -INT $baton_pid
	wait $baton_pid
}

# vCPU threads of a guest.
vcpus() { grep -l '^CPU [0-9]*/KVM' /proc/$(pid_of $1)/task/*/comm | sed 's#.*/task/\([0-9]*\)/comm#\1#'; }
