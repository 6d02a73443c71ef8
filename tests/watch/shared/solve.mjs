// node solve.mjs < {lab, cells: [[...], ...]}: the lab's answers to each list of cells.
import { readFileSync } from "node:fs";
import { bytes } from "../../../mlx_gateloop/watch/shared/data.js";
import { solved } from "../../../mlx_gateloop/watch/shared/lab_cells.js";
import { Model, tensors } from "../../../mlx_gateloop/watch/shared/model.js";

const { lab, cells } = JSON.parse(readFileSync(0, "utf8"));
const models = lab.models.map(({ config, weights }) => new Model(config, tensors(bytes(weights))));
const found = cells.map((each) => solved(each, models, lab));
const plain = (_, value) => (value instanceof Float64Array ? [...value] : value);
console.log(JSON.stringify(found, plain));
