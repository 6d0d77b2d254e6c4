// Runs a bundle of Nearsight in the browser: the same preprocessing and postprocessing as in Python, with onnxruntime-web.
// Nothing leaves the page: images are read, shown to the model and drawn here.

const FINEST = 22; // bits behind the point of Pillow's resampling weights
const SHOWN = 1280; // pixels of the longest side of what is drawn
const TOP = 5; // classes that are listed
const SMALLEST = 1e-2; // a box with a shorter side is none
const OPACITY = 0.5; // of masks and segments

const $ = (id) => document.getElementById(id);

// From a file to pixels

/** Bytes of an image, upright, on white where it is transparent: {data: RGBA bytes, height, width}. */
async function decode(source) {
  const isVideo = source instanceof HTMLVideoElement;
  const image = isVideo ? source : await createImageBitmap(source, { colorSpaceConversion: "none" });
  const width = isVideo ? source.videoWidth : image.width;
  const height = isVideo ? source.videoHeight : image.height;
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.fillStyle = "white";
  context.fillRect(0, 0, width, height);
  context.drawImage(image, 0, 0);
  if (!isVideo) image.close();
  return { data: context.getImageData(0, 0, width, height).data, height, width };
}

const FILTERS = {
  bilinear: { support: 1, weight: (x) => Math.max(0, 1 - Math.abs(x)) },
  bicubic: {
    support: 2,
    weight(x) {
      const a = -0.5;
      x = Math.abs(x);
      if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
      return x < 2 ? a * (((x - 5) * x + 8) * x - 4) : 0;
    },
  },
};

/** For each new pixel of a line the first old one that counts, and the weights from there on, in whole numbers. */
function weights(old, from, to, size, filter) {
  const scale = (to - from) / size;
  const reach = Math.max(1, scale);
  const support = filter.support * reach;
  const lines = [];
  for (let pixel = 0; pixel < size; pixel++) {
    const center = from + (pixel + 0.5) * scale;
    const first = Math.max(0, Math.trunc(center - support + 0.5));
    const last = Math.min(old, Math.trunc(center + support + 0.5));
    const values = [];
    for (let x = first; x < last; x++) values.push(filter.weight((x - center + 0.5) / reach));
    const sum = values.reduce((a, b) => a + b, 0);
    const whole = values.map((v) => Math.trunc((v / sum) * (1 << FINEST) + (v < 0 ? -0.5 : 0.5)));
    lines.push({ first, whole: Int32Array.from(whole) });
  }
  return lines;
}

/** A rounded sum of weighted bytes. */
function toByte(sum) {
  const value = (sum + (1 << (FINEST - 1))) >> FINEST;
  return value < 0 ? 0 : value > 255 ? 255 : value;
}

/** Resize the box [left, top, right, bottom] of an image as Pillow does: along the lines, then down, in bytes. */
function resize(image, height, width, box, filter) {
  const [left, top, right, bottom] = box;
  const across = weights(image.width, left, right, width, filter);
  const down = weights(image.height, top, bottom, height, filter);
  const start = down[0].first;
  const end = down[height - 1].first + down[height - 1].whole.length;
  const narrow = new Uint8Array((end - start) * width * 3);
  for (let y = start; y < end; y++) {
    for (let x = 0; x < width; x++) {
      const { first, whole } = across[x];
      let [red, green, blue] = [0, 0, 0];
      for (let k = 0, at = 4 * (y * image.width + first); k < whole.length; k++, at += 4) {
        red += image.data[at] * whole[k];
        green += image.data[at + 1] * whole[k];
        blue += image.data[at + 2] * whole[k];
      }
      const to = 3 * ((y - start) * width + x);
      narrow[to] = toByte(red);
      narrow[to + 1] = toByte(green);
      narrow[to + 2] = toByte(blue);
    }
  }
  const planes = new Uint8Array(3 * height * width); // [3, H, W]
  for (let y = 0; y < height; y++) {
    const { first, whole } = down[y];
    for (let at = 0; at < 3 * width; at++) {
      let sum = 0;
      for (let k = 0; k < whole.length; k++) sum += narrow[(first - start + k) * 3 * width + at] * whole[k];
      planes[(at % 3) * height * width + y * width + Math.trunc(at / 3)] = toByte(sum);
    }
  }
  return planes;
}

/** Height and width that an image is shown in, and the box of it that is shown. */
function view(image, about) {
  const rule = about.resize;
  let [height, width] = about.input.size;
  if ("crop" in rule) {
    const scale = rule.crop * Math.min(image.width / width, image.height / height);
    const left = (image.width - scale * width) / 2;
    const top = (image.height - scale * height) / 2;
    return { height, width, box: [left, top, left + scale * width, top + scale * height] };
  }
  if (!rule.stretch) {
    const sides = [image.height, image.width];
    const factor = Math.min(rule.min_size / Math.min(...sides), rule.max_size / Math.max(...sides));
    [height, width] = sides.map((side) => Math.max(1, halfToEven(side * factor)));
  }
  return { height, width, box: [0, 0, image.width, image.height] };
}

/** Rounds as Python does. */
function halfToEven(value) {
  const floor = Math.floor(value);
  const rest = value - floor;
  return rest === 0.5 ? floor + (floor % 2) : Math.round(value);
}

/** An image as the model wants it: float32 [1, 3, H, W]. */
function prepare(image, about) {
  const { height, width, box } = view(image, about);
  const bytes = resize(image, height, width, box, FILTERS[about.resize.filter]);
  const numbers = new Float32Array(bytes.length);
  const plane = height * width;
  for (let channel = 0; channel < 3; channel++) {
    const [mean, std] = [Math.fround(about.mean[channel]), Math.fround(about.std[channel])];
    for (let i = channel * plane; i < (channel + 1) * plane; i++) {
      numbers[i] = Math.fround(Math.fround(bytes[i] / about.scale) - mean) / std;
    }
  }
  return { numbers, height, width };
}

// From the outputs of the graph to predictions

const sigmoid = (x) => 1 / (1 + Math.exp(-x));

function listed(probabilities, labels, has) {
  const order = probabilities.map((_, number) => number).sort((a, b) => probabilities[b] - probabilities[a] || a - b);
  return order.map((number) => ({ class: labels[number], probability: probabilities[number], has: has(number) }));
}

const STEPS = {
  classes(outputs, about) {
    const logits = Array.from(outputs.logits.data, Number);
    const most = Math.max(...logits);
    const raised = logits.map((x) => Math.exp(x - most));
    const sum = raised.reduce((a, b) => a + b, 0);
    return { classes: listed(raised.map((x) => x / sum), about.labels, () => false) };
  },
  labels(outputs, about) {
    const probabilities = Array.from(outputs.logits.data, (x) => sigmoid(Number(x)));
    const least = about.settings.thresholds ?? probabilities.map(() => 0.5);
    return { classes: listed(probabilities, about.labels, (number) => probabilities[number] >= least[number]) };
  },
  pixels(outputs) {
    const [, count, height, width] = outputs.logits.dims;
    return { logits: outputs.logits.data, count, height, width };
  },
  nms(outputs, about, shown) {
    const { score_threshold, nms_threshold, candidates, detections } = about.postprocessing;
    const [, , count] = outputs.scores.dims;
    const scores = outputs.scores.data;
    const above = [];
    for (let i = 0; i < scores.length; i++) if (scores[i] > score_threshold) above.push(i);
    above.sort((a, b) => scores[b] - scores[a] || a - b);
    const taken = new Map(); // candidates of each level so far
    const boxes = [];
    for (const i of above) {
      const anchor = Math.trunc(i / count);
      const level = Number(outputs.levels.data[anchor]);
      if ((taken.get(level) ?? 0) >= candidates) continue;
      taken.set(level, (taken.get(level) ?? 0) + 1);
      const box = clip(outputs.boxes.data.subarray(4 * anchor, 4 * anchor + 4), shown);
      if (largeEnough(box)) boxes.push({ box, label: i % count, score: scores[i] });
    }
    return { detections: suppress(boxes, nms_threshold).slice(0, detections) };
  },
  queries(outputs, about, shown) {
    const [, queries, count] = outputs.scores.dims;
    const found = [];
    for (let query = 0; query < queries; query++) {
      const scores = outputs.scores.data.subarray(query * count, (query + 1) * count);
      const score = Math.max(...scores);
      const box = clip(outputs.boxes.data.subarray(4 * query, 4 * query + 4), shown);
      if (score > about.postprocessing.score_threshold && largeEnough(box)) {
        found.push({ box, label: scores.indexOf(score), score });
      }
    }
    return { detections: found.sort((a, b) => b.score - a.score) };
  },
  instances(outputs, about, shown) {
    const found = [];
    for (let i = 0; i < outputs.scores.data.length; i++) {
      if (!(outputs.scores.data[i] > 0)) continue;
      const one = {
        box: Array.from(outputs.boxes.data.subarray(4 * i, 4 * i + 4)),
        label: Number(outputs.labels.data[i]),
        score: outputs.scores.data[i],
      };
      if (outputs.masks) {
        const side = outputs.masks.dims.at(-1);
        one.mask = { side, values: outputs.masks.data.slice(i * side * side, (i + 1) * side * side) };
      }
      found.push(one);
    }
    return { detections: found };
  },
};

function clip(box, { height, width }) {
  return Array.from(box, (value, i) => Math.min(Math.max(value, 0), i % 2 ? height : width));
}

const largeEnough = ([x1, y1, x2, y2]) => x2 - x1 >= SMALLEST && y2 - y1 >= SMALLEST;

/** Of two boxes of a class that overlap more than `limit` the weaker goes; given the best first. */
function suppress(boxes, limit) {
  const kept = [];
  const area = ([x1, y1, x2, y2]) => (x2 - x1) * (y2 - y1);
  for (const one of boxes.toSorted((a, b) => b.score - a.score)) {
    const covered = kept.some((other) => {
      if (other.label !== one.label) return false;
      const wide = Math.min(one.box[2], other.box[2]) - Math.max(one.box[0], other.box[0]);
      const high = Math.min(one.box[3], other.box[3]) - Math.max(one.box[1], other.box[1]);
      const shared = Math.max(0, wide) * Math.max(0, high);
      return shared > limit * (area(one.box) + area(other.box) - shared);
    });
    if (!covered) kept.push(one);
  }
  return kept;
}

/** The class with the largest logit at every pixel of an image of another size: bytes [height * width]. */
function labelsAt({ logits, count, height, width }, tall, wide) {
  const between = (old, size) => Array.from({ length: size }, (_, i) => {
    const position = Math.min(Math.max((i + 0.5) * (old / size) - 0.5, 0), old - 1);
    const first = Math.min(Math.trunc(position), Math.max(0, old - 2));
    return { first, second: Math.min(first + 1, old - 1), fraction: position - first };
  });
  const labels = new Uint8Array(tall * wide);
  const best = new Float32Array(tall * wide).fill(-Infinity);
  const across = between(width, wide);
  const down = between(height, tall);
  for (let c = 0; c < count; c++) {
    for (let y = 0; y < tall; y++) {
      const above = (c * height + down[y].first) * width;
      const below = (c * height + down[y].second) * width;
      for (let x = 0; x < wide; x++) {
        const { first, second, fraction } = across[x];
        const high = logits[above + first] * (1 - fraction) + logits[above + second] * fraction;
        const low = logits[below + first] * (1 - fraction) + logits[below + second] * fraction;
        const value = high * (1 - down[y].fraction) + low * down[y].fraction;
        if (value > best[y * wide + x]) [best[y * wide + x], labels[y * wide + x]] = [value, c];
      }
    }
  }
  return labels;
}

// The model

/** Opens the model that lies beside this page: WebGPU where there is one, else WebAssembly with the threads allowed. */
async function openModel() {
  const about = await (await fetch("preprocess.json")).json();
  const wanted = new URLSearchParams(location.search).get("runtime");
  const hasGpu = wanted !== "wasm" && (await navigator.gpu?.requestAdapter().catch(() => null));
  const tries = hasGpu ? ["webgpu", "wasm"] : ["wasm"];
  for (const provider of tries) {
    try {
      const ort = await import(`./onnxruntime-web/ort.${provider}.min.mjs`);
      const threads = self.crossOriginIsolated ? Math.min(8, navigator.hardwareConcurrency || 1) : 1;
      ort.env.wasm.numThreads = threads;
      ort.env.wasm.wasmPaths = new URL("./onnxruntime-web/", location.href).href;
      const options = { executionProviders: [provider], logSeverityLevel: 3 }; // of its warnings nothing follows
      const session = await ort.InferenceSession.create("model.onnx", options);
      const runtime = provider === "webgpu" ? "WebGPU" : `WebAssembly, ${threads} thread${threads > 1 ? "s" : ""}`;
      return { ort, session, about, runtime };
    } catch (error) {
      if (provider === tries.at(-1)) throw error;
      console.warn(`${provider} can't run this model (${error.message}); trying the next.`);
    }
  }
}

/** What the model says about an image: classes, detections in the image's own pixels, or logits of its pixels. */
async function predict(model, image) {
  const shown = prepare(image, model.about);
  const start = performance.now();
  const tensor = new model.ort.Tensor("float32", shown.numbers, [1, 3, shown.height, shown.width]);
  const outputs = await model.session.run({ [model.session.inputNames[0]]: tensor });
  const milliseconds = performance.now() - start;
  const found = STEPS[model.about.postprocessing.name](outputs, model.about, shown);
  if (found.detections) {
    const least = model.about.settings.threshold ?? 0.5;
    const [wide, tall] = [image.width / shown.width, image.height / shown.height];
    found.detections = found.detections
      .filter((one) => one.score >= least)
      .map((one) => ({
        ...one,
        class: model.about.labels[one.label],
        box: one.box.map((value, i) => value * (i % 2 ? tall : wide)),
      }));
  }
  return { ...found, milliseconds };
}

// What people see

const colour = (number) => `rgb(${COLOURS[number % COLOURS.length].join(" ")})`;

/** Draws an image with its boxes, masks or segments. */
function draw(image, found, canvas) {
  const scale = Math.min(1, SHOWN / Math.max(image.width, image.height));
  const [wide, tall] = [Math.max(1, Math.round(image.width * scale)), Math.max(1, Math.round(image.height * scale))];
  [canvas.width, canvas.height] = [wide, tall];
  const context = canvas.getContext("2d");
  const whole = new OffscreenCanvas(image.width, image.height);
  whole.getContext("2d").putImageData(new ImageData(image.data, image.width, image.height), 0, 0);
  context.drawImage(whole, 0, 0, wide, tall);
  const layer = new OffscreenCanvas(wide, tall);
  if (found.logits) {
    found.labels = labelsAt(found, tall, wide);
    const pixels = new ImageData(wide, tall);
    found.labels.forEach((label, i) => pixels.data.set([...COLOURS[label % COLOURS.length], 255], 4 * i));
    layer.getContext("2d").putImageData(pixels, 0, 0);
  }
  for (const one of found.detections ?? []) if (one.mask) drawMask(one, scale, layer);
  context.globalAlpha = OPACITY;
  context.drawImage(layer, 0, 0);
  context.globalAlpha = 1;
  const size = Math.max(12, Math.round(Math.max(wide, tall) / 50));
  context.font = `600 ${size}px system-ui, sans-serif`;
  context.lineWidth = Math.max(2, size / 7);
  context.textBaseline = "top";
  for (const one of (found.detections ?? []).toReversed()) {
    const [x1, y1, x2, y2] = one.box.map((value) => value * scale);
    context.strokeStyle = context.fillStyle = colour(one.label);
    context.strokeRect(x1, y1, x2 - x1, y2 - y1);
    const text = `${one.class} ${Math.round(100 * one.score)} %`;
    const width = context.measureText(text).width + size / 2;
    const left = Math.max(0, Math.min(x1, wide - width));
    const top = y1 >= 1.3 * size ? y1 - 1.3 * size : y1;
    context.fillRect(left, top, width, 1.3 * size);
    context.fillStyle = lightness(COLOURS[one.label % COLOURS.length]) > 0.55 ? "black" : "white";
    context.fillText(text, left + size / 4, top + size / 6);
  }
}

const lightness = ([red, green, blue]) => (0.299 * red + 0.587 * green + 0.114 * blue) / 255;

function drawMask({ box, label, mask }, scale, layer) {
  const [x1, y1, x2, y2] = box.map((value) => value * scale);
  const context = layer.getContext("2d");
  const at = (row, column) => {
    const inside = row >= 0 && column >= 0 && row < mask.side && column < mask.side;
    return inside ? mask.values[row * mask.side + column] : 0;
  };
  context.fillStyle = colour(label);
  for (let y = Math.max(0, Math.trunc(y1)); y < Math.min(layer.height, Math.ceil(y2)); y++) {
    const down = ((y + 0.5 - y1) / (y2 - y1)) * mask.side - 0.5;
    const row = Math.floor(down);
    for (let x = Math.max(0, Math.trunc(x1)); x < Math.min(layer.width, Math.ceil(x2)); x++) {
      const along = ((x + 0.5 - x1) / (x2 - x1)) * mask.side - 0.5;
      const column = Math.floor(along);
      const [right, below] = [along - column, down - row];
      const upper = at(row, column) * (1 - right) + at(row, column + 1) * right;
      const lower = at(row + 1, column) * (1 - right) + at(row + 1, column + 1) * right;
      if (upper * (1 - below) + lower * below >= 0.5) context.fillRect(x, y, 1, 1);
    }
  }
}

function row(name, value, fraction, dot) {
  const line = document.createElement("li");
  const label = document.createElement("span");
  label.textContent = name;
  const number = document.createElement("b");
  number.textContent = value;
  if (dot !== undefined) {
    const mark = document.createElement("i");
    mark.style.background = colour(dot);
    label.prepend(mark);
  }
  line.append(label, number);
  if (fraction !== undefined) {
    const bar = document.createElement("div");
    bar.style.width = `${Math.max(0.5, 100 * fraction)}%`;
    line.append(bar);
  }
  return line;
}

const percent = (fraction) => `${(100 * fraction).toFixed(1)} %`;

/** Lists what was found, in words. */
function list(found, about) {
  const rows = [];
  if (found.classes) {
    const some = about.postprocessing.name === "labels" ? found.classes.filter((one) => one.has) : [];
    for (const one of some.length ? some : found.classes.slice(0, TOP)) {
      rows.push(row(one.class, percent(one.probability), one.probability));
    }
    if (about.postprocessing.name === "labels" && !some.length) rows.unshift(row("none for certain; most probable:", ""));
  } else if (found.detections) {
    found.detections.forEach((one) => rows.push(row(one.class, percent(one.score), undefined, one.label)));
    if (!rows.length) rows.push(row("nothing found", ""));
  } else {
    const counts = new Map();
    found.labels.forEach((label) => counts.set(label, (counts.get(label) ?? 0) + 1));
    for (const [label, count] of [...counts].sort((a, b) => b[1] - a[1])) {
      rows.push(row(about.labels[label], percent(count / found.labels.length), count / found.labels.length, label));
    }
  }
  $("found").replaceChildren(...rows);
}

/** A sentence about what goes on or went wrong. */
function say(text, isError = false) {
  $("status").textContent = text;
  $("status").classList.toggle("error", isError);
}

let busy = false;

async function show(model, source, name) {
  if (busy) return;
  busy = true;
  try {
    const image = await decode(source);
    const found = await predict(model, image);
    draw(image, found, $("image"));
    list(found, model.about);
    $("result").hidden = false;
    say(`${name}: ${found.milliseconds.toFixed(0)} ms with ${model.runtime}`);
    self.nearsight.last = { name, ...found };
  } catch (error) {
    say(`${name} can't be read as an image (${error.message}); try a JPEG, PNG or WebP file.`, true);
    self.nearsight.last = { name, error: error.message };
  } finally {
    busy = false;
  }
}

async function watch(model) {
  const video = $("video");
  if (video.srcObject) {
    video.srcObject.getTracks().forEach((track) => track.stop());
    video.srcObject = null;
    $("camera").textContent = "Use the camera";
    return;
  }
  try {
    video.srcObject = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
  } catch (error) {
    say(`The camera can't be used (${error.message}); allow it for this page, or choose a file.`, true);
    return;
  }
  await video.play();
  $("camera").textContent = "Stop the camera";
  while (video.srcObject) {
    await show(model, video, "camera");
    await new Promise((done) => requestAnimationFrame(done));
  }
}

/** Pages may use threads only if their server says so in two headers, which a plain one does not: a worker adds them. */
async function allowThreads() {
  if (self.crossOriginIsolated || !("serviceWorker" in navigator) || sessionStorage.getItem("isolating")) return;
  sessionStorage.setItem("isolating", "tried");
  await navigator.serviceWorker.register("isolate.js");
  await navigator.serviceWorker.ready;
  location.reload();
  await new Promise(() => {}); // the page starts again
}

async function start() {
  self.nearsight = { last: null };
  try {
    await allowThreads().catch((error) => console.warn(`One thread only: ${error.message}`));
    say("Opening the model …");
    const model = await openModel();
    const { about } = model;
    $("model").textContent = about.model;
    $("about").textContent = `${about.labels.length} classes · ${about.task} · runs here, in your browser; no image leaves it`;
    say(`Ready: ${model.runtime}. Drop an image, or choose one.`);
    self.nearsight.predict = async (blob) => predict(model, await decode(blob));
    self.nearsight.prepare = async (blob) => prepare(await decode(blob), about);
    self.nearsight.labelsAt = labelsAt;
    self.nearsight.runtime = model.runtime;
    $("file").addEventListener("change", (event) => {
      const [file] = event.target.files;
      if (file) show(model, file, file.name);
      event.target.value = "";
    });
    $("camera").addEventListener("click", () => watch(model));
    $("camera").hidden = !navigator.mediaDevices?.getUserMedia;
    for (const kind of ["dragover", "drop"]) document.addEventListener(kind, (event) => event.preventDefault());
    document.addEventListener("drop", (event) => {
      const [file] = event.dataTransfer.files;
      if (file) show(model, file, file.name);
    });
    document.addEventListener("paste", (event) => {
      const [file] = event.clipboardData.files;
      if (file) show(model, file, file.name || "pasted image");
    });
    document.body.dataset.state = "ready";
  } catch (error) {
    say(`The model can't be opened (${error.message}). This page needs all files of its folder, and a web server.`, true);
    document.body.dataset.state = "failed";
  }
}

start();
