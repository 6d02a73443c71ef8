import { showData } from "./data.js";
import { attach } from "./lab.js";

showData(attach);
