import { check } from "./data.js";
import { attach } from "./lab.js";

const page = document.querySelector(".view");
try {
  const data = JSON.parse(document.querySelector("#data").textContent);
  check(data, "gateloop-lab", 1);
  attach(page, data);
} catch (error) {
  page.textContent = error.message;
}
