#include "call.h"

#include <string_view>

#include "errors.h"

namespace fovea::python {
namespace {

/// f(n, item) for an operand's segments, or for the operand itself.
template <class F>
void for_segments(nb::handle operand, const char* argument, F&& f) {
  const bool list = PyList_Check(operand.ptr()) != 0;
  if (!list && PyTuple_Check(operand.ptr()) == 0) {
    f(0, operand);
    return;
  }
  const auto count = list ? PyList_GET_SIZE(operand.ptr()) : PyTuple_GET_SIZE(operand.ptr());
  if (count > kMaxSegments)
    raise_value(argument, "at most " + std::to_string(kMaxSegments) + " segments; got " +
                              std::to_string(count));
  for (Py_ssize_t n = 0; n < count; ++n)
    f(static_cast<int>(n),
      list ? PyList_GET_ITEM(operand.ptr(), n) : PyTuple_GET_ITEM(operand.ptr(), n));
}

Operand read_operand(Arrays& arrays, nb::handle from, const char* argument) {
  Operand operand;
  if (from.is_none()) return operand;
  for_segments(from, argument,
               [&](int, nb::handle item) { operand.add(arrays.read(item, argument)); });
  return operand;
}

/// In gradients a segment may be None.
MutableOperand write_operand(Arrays& arrays, nb::handle from, const char* argument) {
  MutableOperand operand;
  if (from.is_none()) return operand;
  for_segments(from, argument,
               [&](int, nb::handle item) { operand.add(arrays.write(item, argument)); });
  return operand;
}

void read_weights(Arrays& arrays, nb::handle from, const char* argument, Operand& operand) {
  for_segments(from, argument, [&](int n, nb::handle item) {
    operand.segments[n].norm_weight = arrays.read(item, argument);
  });
}

void write_weights(Arrays& arrays, nb::handle from, const char* argument, MutableOperand& operand,
                   const Operand& of) {
  operand.count = of.count;
  for_segments(from, argument, [&](int n, nb::handle item) {
    operand.segments[n].norm_weight = arrays.write(item, argument);
  });
}

/// A name of `extras` and what it fills in.
struct Place {
  std::string_view name;
  TensorView* view;
};

/// Fills in the tensors of AttentionParams; false: the name is none of them.
bool read_param(Arrays& arrays, AttentionParams& p, const char* name, nb::handle value) {
  const Place places[] = {
      {"mask", &p.mask},
      {"alibi", &p.alibi.slopes},
      {"sinks", &p.sinks},
      {"seed", &p.dropout.seed_tensor},
      {"offset", &p.dropout.offset_tensor},
      {"streams", &p.dropout.streams},
      {"cu_seqlens_q", &p.varlen.cu_seqlens_q},
      {"cu_seqlens_k", &p.varlen.cu_seqlens_k},
      {"seqused_k", &p.seqused_k},
      {"block_table", &p.paged.block_table},
      {"rope_cos", &p.rope.cos},
      {"rope_sin", &p.rope.sin},
      {"rope_q_offsets", &p.rope.q_offsets},
      {"rope_k_offsets", &p.rope.k_offsets},
  };
  for (const Place& place : places) {
    if (place.name != name) continue;
    *place.view = arrays.read(value, name);
    return true;
  }
  if (std::string_view(name) == "q_norm")
    read_weights(arrays, value, name, p.q);
  else if (std::string_view(name) == "k_norm")
    read_weights(arrays, value, name, p.k);
  else
    return false;
  return true;
}

template <class F>
void for_extras(nb::handle extras, F&& f) {
  if (extras.is_none()) return;
  if (PyDict_Check(extras.ptr()) == 0) raise_type("extras", "a dict or None");
  PyObject *key = nullptr, *value = nullptr;
  Py_ssize_t position = 0;
  while (PyDict_Next(extras.ptr(), &position, &key, &value) != 0) {
    const char* name = PyUnicode_AsUTF8(key);
    if (name == nullptr) throw nb::python_error();
    if (value != Py_None) f(name, nb::handle(value));
  }
}

[[noreturn]] void refuse_extra(const char* name) {
  raise_value("extras", std::string("no tensor is called ") + name);
}

void read_operands(Arrays& arrays, AttentionParams& params, nb::handle q, nb::handle k,
                   nb::handle v) {
  params.q = read_operand(arrays, q, "q");
  params.k = read_operand(arrays, k, "k");
  params.v = read_operand(arrays, v, "v");
}

}  // namespace

ForwardCall::ForwardCall(const Config& config, nb::handle q, nb::handle k, nb::handle v,
                         nb::handle out, nb::handle lse, nb::handle extras, void* stream)
    : arrays_(stream) {
  args_.params = config.params;
  read_operands(arrays_, args_.params, q, k, v);
  args_.out = write_operand(arrays_, out, "out");
  args_.lse = arrays_.write(lse, "lse");
  for_extras(extras, [&](const char* name, nb::handle value) {
    if (!read_param(arrays_, args_.params, name, value)) refuse_extra(name);
  });
}

BackwardCall::BackwardCall(const Config& config, nb::handle q, nb::handle k, nb::handle v,
                           nb::handle out, nb::handle lse, nb::handle dout, nb::handle dq,
                           nb::handle dk, nb::handle dv, nb::handle extras, void* stream)
    : arrays_(stream) {
  args_.params = config.params;
  read_operands(arrays_, args_.params, q, k, v);
  args_.out = read_operand(arrays_, out, "out");
  args_.lse = arrays_.read(lse, "lse");
  args_.dout = read_operand(arrays_, dout, "dout");
  args_.dq = write_operand(arrays_, dq, "dq");
  args_.dk = write_operand(arrays_, dk, "dk");
  args_.dv = write_operand(arrays_, dv, "dv");
  for_extras(extras, [&](const char* name, nb::handle value) {
    const std::string_view text = name;
    if (text == "dlse")
      args_.dlse = arrays_.read(value, name);
    else if (text == "dmask")
      args_.dmask = arrays_.write(value, name);
    else if (text == "dsinks")
      args_.dsinks = arrays_.write(value, name);
    else if (text == "dq_norm")
      write_weights(arrays_, value, name, args_.dq, args_.params.q);
    else if (text == "dk_norm")
      write_weights(arrays_, value, name, args_.dk, args_.params.k);
    else if (!read_param(arrays_, args_.params, name, value))
      refuse_extra(name);
  });
}

}  // namespace fovea::python
