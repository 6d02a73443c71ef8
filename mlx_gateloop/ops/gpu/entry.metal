  const int lane = int(thread_position_in_threadgroup.x);
  const int seg = int(thread_position_in_threadgroup.y);
  const int run = int(threadgroup_position_in_grid.x);
  const int block = int(threadgroup_position_in_grid.y);
  const int runs = int(threadgroups_per_grid.x);
