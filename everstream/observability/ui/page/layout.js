// Where the boxes of the graph go: layers from sources to sinks, few crossings, and for an edge that
// skips layers a free lane through them. Independent of the page: boxes and edges in, positions out.

const LANE = 22;

/**
 * boxes: [{id, width, height}], edges: [{from, to, feedback}] between their ids.
 * Gives {places: Map id → {x, y}, routes: [[x, y] ...] per edge, width, height}.
 */
export function laidOut(boxes, edges, { upright = false, between = 96, apart = 20 } = {}) {
  const forward = withoutCycles(boxes, edges);
  const layers = layered(boxes, edges, forward);
  const { rows, paths } = withLanes(boxes, edges, forward, layers);
  order(rows, paths);
  return place(boxes, edges, rows, paths, forward, upright, between, apart);
}

/** The forward edges: all except feedback and others that would close a cycle. */
function withoutCycles(boxes, edges) {
  const after = new Map(boxes.map((box) => [box.id, []]));
  const reaches = (from, to) => {
    const seen = new Set([from]);
    const open = [from];
    while (open.length) {
      const id = open.pop();
      if (id === to) return true;
      for (const next of after.get(id)) if (!seen.has(next)) { seen.add(next); open.push(next); }
    }
    return false;
  };
  return edges.map((edge) => {
    if (edge.feedback || !after.has(edge.from) || !after.has(edge.to) || reaches(edge.to, edge.from)) return false;
    after.get(edge.from).push(edge.to);
    return true;
  });
}

function layered(boxes, edges, forward) {
  const layer = new Map(boxes.map((box) => [box.id, 0]));
  for (let round = 0; round < boxes.length; round += 1) {
    let moved = false;
    edges.forEach((edge, index) => {
      if (!forward[index]) return;
      const least = layer.get(edge.from) + 1;
      if (layer.get(edge.to) < least) { layer.set(edge.to, least); moved = true; }
    });
    if (!moved) break;
  }
  return layer;
}

/** The rows of each layer: boxes, and lanes of edges that pass by. */
function withLanes(boxes, edges, forward, layer) {
  const rows = Array.from({ length: Math.max(0, ...layer.values()) + 1 }, () => []);
  for (const box of boxes) rows[layer.get(box.id)].push({ id: box.id, box, rank: 0 });
  const item = new Map(rows.flat().map((entry) => [entry.id, entry]));
  const paths = edges.map((edge, index) => {
    if (!forward[index]) return null;
    const path = [item.get(edge.from)];
    for (let at = layer.get(edge.from) + 1; at < layer.get(edge.to); at += 1) {
      const lane = { id: null, box: null, rank: 0 };
      rows[at].push(lane);
      path.push(lane);
    }
    path.push(item.get(edge.to));
    return path;
  });
  return { rows, paths };
}

/** Sorts each row by the positions of its neighbours, back and forth: few crossings, cheaply. */
function order(rows, paths) {
  const before = new Map();
  const after = new Map();
  for (const path of paths) {
    if (path === null) continue;
    for (let step = 1; step < path.length; step += 1) {
      before.set(path[step], [...(before.get(path[step]) ?? []), path[step - 1]]);
      after.set(path[step - 1], [...(after.get(path[step - 1]) ?? []), path[step]]);
    }
  }
  const rank = (row) => row.forEach((entry, index) => { entry.rank = (index + 0.5) / row.length; });
  const mean = (entry, near) => {
    const others = near.get(entry);
    return others ? others.reduce((sum, other) => sum + other.rank, 0) / others.length : entry.rank;
  };
  rows.forEach(rank);
  for (let round = 0; round < 6; round += 1) {
    const onward = round % 2 === 0;
    for (const row of onward ? rows : [...rows].reverse()) {
      const wanted = new Map(row.map((entry) => [entry, mean(entry, onward ? before : after)]));
      row.sort((one, other) => wanted.get(one) - wanted.get(other));
      rank(row);
    }
  }
}

/** From rows to pixels; `along` is the direction of records, `across` the other one. */
function place(boxes, edges, rows, paths, forward, upright, between, apart) {
  const along = (entry) => (entry.box === null ? 0 : upright ? entry.box.height : entry.box.width);
  const across = (entry) => (entry.box === null ? LANE : upright ? entry.box.width : entry.box.height);
  const breadth = rows.map((row) => row.reduce((sum, entry) => sum + across(entry) + apart, -apart));
  const widest = Math.max(0, ...breadth);
  const loops = forward.filter((onward) => !onward).length;
  const ends = loops ? LANE + 2 : 0;
  let begin = ends;
  rows.forEach((row, index) => {
    const depth = Math.max(0, ...row.map(along));
    let next = (widest - breadth[index]) / 2;
    for (const entry of row) {
      entry.from = entry.box === null ? begin : begin + (depth - along(entry)) / 2;
      entry.to = entry.box === null ? begin + depth : entry.from + along(entry);
      entry.side = next;
      entry.middle = next + across(entry) / 2;
      next += across(entry) + apart;
    }
    begin += depth + between;
  });
  const length = Math.max(0, begin - between + ends);
  const point = (a, b) => (upright ? [b, a] : [a, b]);
  const entries = new Map(rows.flat().filter((entry) => entry.box).map((entry) => [entry.id, entry]));
  let loop = 0;
  const routes = edges.map((edge, index) => {
    if (paths[index] === null) {
      const from = entries.get(edge.from);
      const to = entries.get(edge.to);
      if (!from || !to) return [];
      loop += 1;
      const far = widest + LANE * loop;
      return [point(from.to, from.middle), point(from.to + 16, from.middle), point(from.to + 16, far),
        point(to.from - 16, far), point(to.from - 16, to.middle), point(to.from, to.middle)];
    }
    return paths[index].flatMap((entry, step, all) => {
      if (step === 0) return [point(entry.to, entry.middle)];
      if (step === all.length - 1) return [point(entry.from, entry.middle)];
      return [point(entry.from, entry.middle), point(entry.to, entry.middle)];
    });
  });
  const places = new Map([...entries].map(([id, entry]) => {
    const [x, y] = point(entry.from, entry.side);
    return [id, { x, y }];
  }));
  const [width, height] = point(length, widest + (loops ? LANE * (loops + 1) : 0));
  return { places, routes, width, height };
}
