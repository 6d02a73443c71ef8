// The number of processors that this process may use.
#pragma once

#include <cstddef>
#include <string>

namespace gateloop {

// The processors of the affinity mask, at most the CPU quota (rounded up) of the process's cgroup
// and of the groups around it. `membership` is /proc/self/cgroup, `mount` is where cgroups lie.
size_t count_processors(const std::string& membership, const std::string& mount);

// The count at the first call: asking the system takes microseconds, as long as a small operation.
size_t processors();

}  // namespace gateloop
