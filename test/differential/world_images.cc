// Arrays, textures, 3D copies, and values that streams write.
#include <algorithm>

#include "world.h"

namespace differential {

// a: an array; b: an array or device memory. The copy goes either way.
bool World::ImageCopy(const Op& op, Random& random) {
  const int stream = StreamOf(op, random);
  if (stream < 0 || !Live(op.a) || !Live(op.b) || op.a == op.b) return false;
  if (blocks[op.a].kind != kInArray || blocks[op.b].host) return false;
  const bool both = blocks[op.b].kind == kInArray;
  const int context = streams[stream].context;
  const auto is_near = [&](int block) { return contexts[blocks[block].context].family == contexts[context].family; };
  if (!is_near(op.a) || (both ? !is_near(op.b) : !Reaches(context, op.b))) return false;
  const bool is_to = random.OneIn(2);
  const int to = is_to ? op.a : op.b, from = is_to ? op.b : op.a;
  const int64_t width = both ? std::min(blocks[op.a].pitch, blocks[op.b].pitch) : blocks[op.a].pitch;
  int64_t rows = both ? std::min(blocks[op.a].rows, blocks[op.b].rows) : blocks[op.a].rows;
  if (!both) rows = std::min(rows, blocks[op.b].bytes / width);
  if (rows == 0) return false;
  if (random.OneIn(3)) rows = 1 + random.Below(static_cast<int>(rows));
  const bool whole = width * rows == blocks[to].bytes;
  const int thread = ThreadFor(stream, op.thread), number = streams[stream].number;
  int form = random.Below(kImageForms);
  if (form == kTwoDimensionsNow && (number != 0 || streams[stream].capture >= 0 || !Unsafe(thread)))
    form = kTwoDimensions;
  if (!Begin(op, stream, {{to, true, whole}, {from, false, false}}, random)) return false;
  const StepKind kind = both ? kBetweenArrays : is_to ? kToArray : kFromArray;
  Emit(kind, thread, {to, from, width, rows, number, form});
  return true;
}

// a: the sampled memory; b: where the kernel writes.
bool World::Sample(const Op& op, Random& random) {
  const int stream = StreamOf(op, random);
  if (!target_.textures || stream < 0 || !Live(op.a) || !Live(op.b) || op.a == op.b || blocks[op.a].host) return false;
  if (streams[stream].capture >= 0 || blocks[op.a].word || blocks[op.a].kind == kGlobalOfModule) return false;
  const int context = streams[stream].context;
  const bool is_array = blocks[op.a].kind == kInArray;
  if (is_array ? contexts[blocks[op.a].context].family != contexts[context].family : !Reaches(context, op.a))
    return false;
  if (!Reaches(context, op.b)) return false;
  // A texture is of its context, and a capture forbids to make one (900, H200, driver 580). The simulated GPU asks
  // neither, nor do the forms before the sixth.
  const int family = target_.forms >= 6 ? contexts[context].family : -1;
  if (blocks[op.a].texture && blocks[op.a].texture_family != family) return false;
  if (!blocks[op.a].texture && target_.forms >= 6 && !Unsafe(ThreadFor(stream, op.thread))) return false;
  const int64_t bytes = std::min(blocks[op.a].bytes, blocks[op.b].bytes) / 4 * 4;
  const bool whole = bytes == blocks[op.b].bytes;
  const int thread = ThreadFor(stream, op.thread);
  if (!Begin(op, stream, {{op.b, true, whole}, {op.a, false, false}}, random)) return false;
  if (target_.forms >= 6) Use(thread, context);
  const bool in_rows = target_.forms >= 2 && blocks[op.a].kind == kPitchedRows;
  if (in_rows && !blocks[op.a].texture) {
    Emit(kTextureOfRows, thread, {op.a, blocks[op.a].pitch, blocks[op.a].rows});
    blocks[op.a].texture = true;
  }
  if (!blocks[op.a].texture) Emit(is_array ? kTextureOfArray : kTexture, thread, {op.a, blocks[op.a].bytes / 4 * 4});
  blocks[op.a].texture = true;
  blocks[op.a].texture_family = family;
  Emit(kSample, thread, {context, streams[stream].number, op.a, op.b, bytes, random.Below(1 << 20)});
  return true;
}

bool World::Slices(const Op& op, Random& random) {
  const int stream = StreamOf(op, random);
  if (stream < 0 || !Live(op.a) || !Live(op.b) || op.a == op.b) return false;
  if (!Reaches(streams[stream].context, op.a) || !Reaches(streams[stream].context, op.b)) return false;
  const int64_t most = std::min(blocks[op.a].bytes, blocks[op.b].bytes);
  const int64_t width = 4 * (1 + random.Below(64)), rows = 1 + random.Below(8);
  // Slices lie apart: the memory between them is none of the copy's.
  const int64_t to_rows = rows + random.Below(4), from_rows = rows + random.Below(4);
  const int64_t slices = std::min<int64_t>(most / (width * std::max(to_rows, from_rows)), 1 + random.Below(16));
  if (slices == 0) return false;
  const int thread = ThreadFor(stream, op.thread);
  const bool can_batch = target_.discard && streams[stream].capture < 0 && streams[stream].number >= 3 &&
                         contexts[blocks[op.a].context].device == contexts[blocks[op.b].context].device;
  if (!Begin(op, stream, {{op.a, true, false}, {op.b, false, false}}, random)) return false;
  const bool is_batch = can_batch && random.OneIn(2);
  Emit(is_batch ? kCopy3DBatch : kCopy3D, thread,
       {op.a, to_rows, op.b, from_rows, width, rows, slices, streams[stream].number});
  return true;
}

// The driver refuses values in managed memory and in that of pools.
bool World::Value(const Op& op, Random& random) {
  const int stream = StreamOf(op, random);
  if (stream < 0 || !Live(op.a) || blocks[op.a].kind != kAllocated || blocks[op.a].host) return false;
  if (!Reaches(streams[stream].context, op.a) || blocks[op.a].bytes < 16) return false;
  const int64_t at = random.Below(static_cast<int>(blocks[op.a].bytes / 8)) * 8;
  const int thread = ThreadFor(stream, op.thread);
  if (!Begin(op, stream, {{op.a, true, false}}, random)) return false;
  Emit(kWriteValues, thread, {op.a, at, random.Below(1 << 20), streams[stream].number, random.Below(2)});
  return true;
}

}  // namespace differential
