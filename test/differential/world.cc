#include "world.h"

#include <algorithm>

namespace differential {

World::World(const Target& target)
    : contexts(kMaxContexts),
      streams(kMaxStreams),
      blocks(kMaxBlocks),
      captures(kMaxGraphs),
      graphs(kMaxGraphs),
      pools(kMaxPools, -1),
      target_(target),
      gates_(kMaxContexts),
      events_(kMaxContexts),
      unpacks_(kMaxPools),
      shares_(kMaxPools) {
  std::fill(current_, current_ + kMaxThreads, -1);
  for (int device = 0; device < target.gpus; ++device) {
    contexts[device] = {true, true, false, device, device};
    Emit(kRetain, 0, {device, device});
    Use(0, device);
    Emit(kLoad, 0, {device});
  }
  Use(0, 0);
}

bool World::Apply(const Op& op) {
  World trial = *this;
  if (!trial.Do(op)) return false;
  *this = std::move(trial);
  return true;
}

bool World::Do(const Op& op) {
  if (current_[op.thread] < 0 && op.kind != OpKind::kEndThread) Use(op.thread, 0);
  switch (op.kind) {
    case OpKind::kFill:
    case OpKind::kMix:
    case OpKind::kUpdate:
    case OpKind::kChase:
    case OpKind::kCopy:
    case OpKind::kToDevice:
    case OpKind::kToHost:
    case OpKind::kCopy2D:
    case OpKind::kImageCopy:
    case OpKind::kSample:
    case OpKind::kSlices:
    case OpKind::kValue:
    case OpKind::kPrefetch:
    case OpKind::kAdvise:
    case OpKind::kDiscard:
    case OpKind::kAttach:
    case OpKind::kRemap:
    case OpKind::kHostFill:
    case OpKind::kStore:
    case OpKind::kUnpack:
    case OpKind::kPast:
    case OpKind::kBarred:
    case OpKind::kShare:
    case OpKind::kImport:
      return DoWork(op);
    case OpKind::kBeginCapture:
    case OpKind::kEndCapture:
    case OpKind::kBuildGraph:
    case OpKind::kScratch:
    case OpKind::kSetNode:
    case OpKind::kMakeExec:
    case OpKind::kLaunchExec:
    case OpKind::kEndGraph:
      return DoGraph(op);
    default:
      return DoObjects(op);
  }
}

void World::Emit(StepKind kind, int thread, std::initializer_list<int64_t> arguments) {
  Step step{kind, thread, group_, {}};
  std::copy(arguments.begin(), arguments.end(), step.a.begin());
  steps_.push_back(step);
}

void World::Use(int thread, int context) {
  if (current_[thread] == context) return;
  current_[thread] = context;
  Emit(kSetCurrent, thread, {context});
}

int World::NewLine(int stream, int context) {
  lines_.push_back({});
  lines_.back().stream = stream;
  lines_.back().gate = gates_[context];
  return static_cast<int>(lines_.size()) - 1;
}

int World::LegacyStream(int context) {
  for (size_t i = 0; i < streams.size(); ++i) {
    const Stream& one = streams.At(i);
    if (one.live && one.context == context && one.number == 0) return static_cast<int>(i);
  }
  Stream made{true, false, 0, context, -1, -1, -1};
  const int index = static_cast<int>(streams.size());
  made.line = NewLine(index, context);
  streams.push_back(made);
  return index;
}

int World::PerThreadStream(int context, int thread) {
  for (size_t i = 0; i < streams.size(); ++i) {
    const Stream& one = streams.At(i);
    if (one.live && one.context == context && one.number == 1 && one.thread == thread) return static_cast<int>(i);
  }
  Stream made{true, true, 1, context, -1, thread, -1};
  const int index = static_cast<int>(streams.size());
  made.line = NewLine(index, context);
  streams.push_back(made);
  return index;
}

bool World::Unsafe(int thread) const {
  return std::none_of(captures.begin(), captures.end(), [&](const Capture& one) {
    return one.open && (one.mode == CU_STREAM_CAPTURE_MODE_GLOBAL ||
                        (one.mode == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL && one.thread == thread));
  });
}
bool World::LegacyFree(int context) const {
  return std::none_of(captures.begin(), captures.end(), [&](const Capture& one) {
    return one.open && streams[one.stream].blocking && streams[one.stream].context == context;
  });
}
bool World::SyncFree(int context) const {
  return std::none_of(captures.begin(), captures.end(), [&](const Capture& one) {
    return one.open && contexts[streams[one.stream].context].family == contexts[context].family;
  });
}

// The legacy stream waits for the context's blocking streams, and they for it.
void World::JoinBarrier(int stream) {
  const Stream& self = streams[stream];
  for (const Stream& other : streams) {
    if (other.line < 0 || other.line == self.line || other.context != self.context) continue;
    const bool ordered = self.number == 0 ? other.blocking : self.blocking && other.number == 0;
    if (ordered) lines_[self.line].clock.Join(lines_[other.line].barrier);
  }
}

Stamp World::Submit(int stream, bool runs) {
  const Stream& self = streams[stream];
  Line& line = lines_[self.line];
  line.clock.Join(host_);
  line.clock.Join(line.gate);
  if (runs) JoinBarrier(stream);
  const Stamp stamp{self.line, ++line.last};
  line.clock.Add(stamp);
  if (runs) line.barrier = line.clock;
  return stamp;
}

int World::ValueWord(int context) const {
  for (int i = 0; i < kMaxBlocks; ++i) {
    const Block& one = blocks[i];
    // Each word is written once: of two unordered writes the first could be the last.
    const bool has_room = 4 * next_word_ + 4 <= one.bytes;
    if (one.live && one.word && has_room && contexts[one.context].family == contexts[context].family) return i;
  }
  return -1;
}

int World::EventOf(int context, int thread, Random& random) {
  auto& known = events_[context];
  // Threads that run at the same time share no events: one could record another's before it is there, or again.
  if (group_ == 0 && !known.empty() && random.OneIn(2)) return known[random.Below(static_cast<int>(known.size()))];
  Use(thread, context);
  Emit(kMakeEvent, thread, {next_event_, random.OneIn(3) ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING});
  if (group_ == 0) known.push_back(next_event_);
  return next_event_++;
}

bool World::SyncContext(int context, int thread) {
  if (!Unsafe(thread) || !SyncFree(context)) return false;
  Use(thread, context);
  Emit(kSyncContext, thread, {});
  HostWaited(context);
  return true;
}

void World::HostWaited(int context) {
  for (const Line& line : lines_) {
    const bool is_known = group_ == 0 || streams[line.stream].line == group_line_;
    if (is_known && streams[line.stream].context == context) host_.Join(line.clock);
  }
}

bool World::Order(int stream, Stamp stamp, int thread, Random& random) {
  if (host_.Has(stamp) || (stream >= 0 && lines_[streams[stream].line].clock.Has(stamp))) return true;
  const int from = lines_[stamp.line].stream;
  const Stream& source = streams[from];
  const bool is_default = source.number <= 1;
  if (!source.live) return SyncContext(source.context, thread);
  if (source.capture >= 0 || (source.number == 0 && !LegacyFree(source.context))) return false;
  const int there = ThreadFor(from, thread);
  if (there != thread && source.number == 1 && next_event_ + 2 >= kMaxEvents) return false;
  // Device-side ways are legal beside any capture; the host's are not.
  const bool device_side = stream >= 0 && streams[stream].capture < 0 &&
                           !(streams[stream].number == 0 && !LegacyFree(streams[stream].context));
  int way = random.Below(target_.forms >= 5 ? 12 : target_.forms >= 2 ? 10 : 9);
  // An event of the whole context; or all work to come of the other stream's context waits.
  if (way == 10 && (!device_side || !MayGate(source.context, thread))) way = 0;
  if (way == 11 && (!device_side || is_attached_ || !MayGate(streams[stream].context, thread))) way = 0;
  // A word in memory that one stream writes and the other waits for.
  const bool by_value = way == 8 && device_side && !is_default && streams[stream].number >= 3 &&
                        contexts[source.context].family == contexts[streams[stream].context].family &&
                        ValueWord(source.context) >= 0;
  if (way == 8 && !by_value) way = 0;
  if (way == 9 && (!device_side || is_default || streams[stream].number < 3 || next_semaphore_ >= kMaxSemaphores))
    way = 0;
  if (!Unsafe(there) || !Unsafe(thread)) way = 0;
  if (way == 0 && !device_side) {
    if (!Unsafe(there) || !Unsafe(thread)) return false;
    way = 1;
  }
  if (way == 2 && !SyncFree(source.context)) way = 1;
  const int event = way == 0 || way == 3 || way == 5 || way >= 10 ? EventOf(source.context, there, random) : -1;
  if (event >= 0 || is_default) Use(there, source.context);
  if (event >= 0 && way != 10 && source.number == 0 && target_.waits) {
    JoinBarrier(from);
    lines_[source.line].barrier = lines_[source.line].clock;
  }
  switch (way) {
    case 0: {
      Emit(kRecordEvent, there, {event, source.number});
      const int waiter = ThreadFor(stream, thread);
      if (streams[stream].number <= 1) Use(waiter, streams[stream].context);
      Emit(kWaitEvent, waiter, {streams[stream].number, event});
      lines_[streams[stream].line].clock.Join(lines_[source.line].clock);
      return true;
    }
    case 2:
      return SyncContext(source.context, there);
    case 10: {
      Emit(kRecordContext, there, {source.context, event});
      Clock all;
      for (const Line& line : lines_) {
        // Whether work of a destroyed stream is part of it was not asked of a card.
        if (IsPart(line.stream, source.context) && streams[line.stream].live) all.Join(line.clock);
      }
      const int waiter = ThreadFor(stream, thread);
      if (streams[stream].number <= 1) Use(waiter, streams[stream].context);
      Emit(kWaitEvent, waiter, {streams[stream].number, event});
      lines_[streams[stream].line].clock.Join(all);
      return true;
    }
    case 11:
      Emit(kRecordEvent, there, {event, source.number});
      EmitGate(streams[stream].context, event, thread, lines_[source.line].clock);
      return true;
    case 3:
    case 5:
      Emit(kRecordEvent, there, {event, source.number});
      Emit(way == 3 ? kSyncEvent : kPollEvent, there, {event});
      break;
    case 4:
      Emit(kPollStream, there, {source.number});
      break;
    case 8: {
      const int block = ValueWord(source.context);
      Emit(kWriteValue, there, {source.number, block, int64_t{4} * next_word_});
      Emit(kWaitValue, thread, {streams[stream].number, block, int64_t{4} * next_word_++});
      lines_[streams[stream].line].clock.Join(lines_[source.line].clock);
      return true;
    }
    case 9:
      Use(there, source.context);
      Emit(kMakeSemaphore, there, {next_semaphore_});
      Emit(kSignalSemaphore, there, {next_semaphore_, source.number});
      Emit(kWaitSemaphore, thread, {next_semaphore_++, streams[stream].number});
      lines_[streams[stream].line].clock.Join(lines_[source.line].clock);
      return true;
    case 6:
      Emit(kSetMark, there, {next_mark_, source.number});
      Emit(kSyncStream, there, {source.number});
      Emit(kWaitMark, there, {next_mark_++});
      break;
    default:
      Emit(kSyncStream, there, {source.number});
      break;
  }
  host_.Join(lines_[source.line].clock);
  return true;
}

bool World::IsPart(int stream, int context) const {
  const int of = streams[stream].context;
  return of == context || (contexts[context].primary && contexts[of].green && contexts[of].family == context);
}

bool World::MayGate(int context, int thread) const {
  return group_ == 0 && Unsafe(thread) && SyncFree(context) && !contexts[context].green;
}

void World::EmitGate(int context, int event, int thread, const Clock& clock) {
  const Clock gate = clock;  // of a line that may change
  Emit(kGateContext, thread, {context, event});
  for (size_t i = 0; i < lines_.size(); ++i) {
    if (IsPart(lines_.At(i).stream, context)) lines_[i].gate.Join(gate);
  }
  for (int i = 0; i < kMaxContexts; ++i) {
    const bool is_green_part = contexts[context].primary && contexts[i].green && contexts[i].family == context;
    if (contexts[i].live && (i == context || is_green_part)) gates_[i].Join(gate);
  }
}

bool World::OrderBlock(int stream, int block, bool write, int thread, Random& random) {
  const Block one = blocks[block];  // by value: ordering may add streams
  if (!Order(stream, one.write, thread, random)) return false;
  if (!write) return true;
  for (const Stamp& read : one.reads) {
    if (!Order(stream, read, thread, random)) return false;
  }
  return true;
}

bool World::Reaches(int context, int block) const {
  const Block& one = blocks[block];
  if (one.host || one.kind == kInArray) return false;
  return one.kind == kManagedMemory || contexts[one.context].family == contexts[context].family;
}

int World::StreamOf(const Op& op, Random& random) {
  if (op.stream >= 0) return LiveStream(op.stream) ? op.stream : -1;
  // -1 - context: the legacy stream of a context, or the thread's own.
  const int context = -1 - op.stream;
  if (context >= kMaxContexts || !contexts[context].live || contexts[context].green) return -1;
  return random.OneIn(2) ? LegacyStream(context) : PerThreadStream(context, op.thread);
}

bool World::Begin(const Op& op, int stream, std::initializer_list<Access> accesses, Random& random) {
  for (const Access& access : accesses) {
    if (!Live(access.block) || blocks[access.block].table) return false;
    if (!blocks[access.block].defined && !(access.write && access.whole)) {
      const int capture = streams[stream].capture;
      if (capture < 0 || graphs[capture].defines.count(access.block) == 0) return false;
    }
  }
  const int capture = streams[stream].capture;
  if (capture >= 0) {
    Graph& graph = graphs[capture];
    for (const Access& access : accesses) {
      if (blocks[access.block].kind == kGlobalOfModule) return false;
      const bool blind = access.write && access.whole;
      if (!blind && graph.defines.count(access.block) == 0) graph.needs.insert(access.block);
      (access.write ? graph.writes : graph.reads).insert(access.block);
      if (access.write) graph.defines.insert(access.block);
    }
    Use(op.thread, streams[stream].context);
    return true;
  }
  if (streams[stream].number == 0 && !LegacyFree(streams[stream].context)) return false;
  const int thread = ThreadFor(stream, op.thread);
  for (const Access& access : accesses) {
    if (!OrderBlock(stream, access.block, access.write, thread, random)) return false;
  }
  Use(thread, streams[stream].context);
  const Stamp stamp = Submit(stream);
  for (const Access& access : accesses) {
    Block& block = blocks[access.block];
    if (access.write) {
      block.write = stamp;
      block.reads.clear();
      block.defined = true;
    } else {
      block.reads.push_back(stamp);
    }
  }
  return true;
}

}  // namespace differential
