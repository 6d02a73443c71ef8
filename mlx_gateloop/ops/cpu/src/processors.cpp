#include "processors.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <thread>

namespace gateloop {

namespace {

size_t affine_processors() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return std::thread::hardware_concurrency();  // more processors than the set holds
}

// cpu.max is "QUOTA PERIOD" in microseconds, or "max PERIOD" without a limit.
size_t within_quota(size_t count, const std::string& group) {
  std::ifstream file(group + "/cpu.max");
  double quota, period;
  if (!(file >> quota >> period) || period <= 0) return count;
  return std::min(count, size_t(std::ceil(quota / period)));
}

// The path of the process's cgroup (version 2) in the mount, "" for the root.
std::string own_group(const std::string& membership) {
  std::ifstream file(membership);
  for (std::string line; std::getline(file, line);)
    if (line.rfind("0::/", 0) == 0) return line.size() > 4 ? line.substr(3) : "";
  return "";
}

}  // namespace

size_t count_processors(const std::string& membership, const std::string& mount) {
  size_t count = affine_processors();
  for (auto group = own_group(membership);; group.resize(group.rfind('/'))) {
    count = within_quota(count, mount + group);
    if (group.empty()) break;
  }
  return std::max<size_t>(1, count);
}

size_t processors() {
  static const size_t count = count_processors("/proc/self/cgroup", "/sys/fs/cgroup");
  return count;
}

}  // namespace gateloop
