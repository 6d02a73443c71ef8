import { recording } from "./data.js";
import { View } from "./view.js";

const page = document.querySelector(".view");
try {
  const recorded = recording(JSON.parse(document.querySelector("#data").textContent));
  const view = new View(page);
  view.show(recorded);
  view.offer(recorded.forgotten);
} catch (error) {
  page.textContent = error.message;
}
