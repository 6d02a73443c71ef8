import { recording, showData } from "./data.js";
import { View } from "./view.js";

showData((page, data) => {
  const recorded = recording(data);
  const view = new View(page);
  view.show(recorded);
  view.offer(recorded.forgotten);
});
