/** Views by the name of their group. @type {Map<string, import("./state_view.js").StateView[]>} */
const groups = new Map();

/**
 * The views that show the same places as this one, and itself.
 * @param {import("./state_view.js").StateView} view
 * @param {string} [name] Of the group; a view without one is alone.
 */
export function linked(view, name) {
  if (!name) return [view];
  const group = groups.get(name) ?? [];
  const there = group.filter(({ element }) => element.isConnected);
  group.splice(0, group.length, ...there, view); // the others have this array, too
  groups.set(name, group);
  return group;
}
