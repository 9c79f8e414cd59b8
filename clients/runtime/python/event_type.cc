// SPDX-License-Identifier: Apache-2.0
//
// The type Event; runtime_module.cc says what it does.
#include "clients/runtime/python/python.h"
#include "clients/runtime/timing.h"

namespace kiln::runtime::py {
namespace {

struct EventObject {
  PyObject ob_base;
  Event* event;
};
const Event& EventOf(PyObject* self) { return *reinterpret_cast<EventObject*>(self)->event; }

PyObject* New(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* keywords[] = {"device", "kind", nullptr};
  int index = 0;
  PyObject* kind = nullptr;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|i$O:Event", const_cast<char**>(keywords), &index, &kind)) return nullptr;
  auto device = DeviceOf(kind, index);
  if (!device) return nullptr;
  auto event = Event::Create(std::move(device));
  if (!event) return Raise(event.error());
  auto* object = PyObject_New(EventObject, type);
  if (!object) return nullptr;
  object->event = new Event(std::move(*event));
  return reinterpret_cast<PyObject*>(object);
}

void Dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  delete reinterpret_cast<EventObject*>(self)->event;
  PyObject_Free(self);
  Py_DECREF(reinterpret_cast<PyObject*>(type));
}

PyObject* NoneOr(const Result<void>& result) {
  if (!result) return Raise(result.error());
  Py_INCREF(Py_None);
  return Py_None;
}

PyObject* Record(PyObject* self, PyObject* args, PyObject* kwargs) {
  static const char* keywords[] = {"stream", nullptr};
  unsigned long long stream = 0;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|K:record", const_cast<char**>(keywords), &stream)) return nullptr;
  return NoneOr(EventOf(self).Record(reinterpret_cast<void*>(stream)));
}

PyObject* Synchronize(PyObject* self, PyObject*) {
  Result<void> waited;
  {
    WithoutGil released;
    waited = EventOf(self).Synchronize();
  }
  return NoneOr(waited);
}

PyObject* Query(PyObject* self, PyObject*) {
  auto done = EventOf(self).Done();
  if (!done) return Raise(done.error());
  return PyBool_FromLong(*done);
}

PyObject* ElapsedMs(PyObject* self, PyObject* since) {
  if (Py_TYPE(since) != GetState().event_type) return PyErr_Format(PyExc_TypeError, "elapsed_ms takes an Event");
  Result<double> milliseconds;
  {
    WithoutGil released;
    milliseconds = EventOf(self).MillisecondsSince(EventOf(since));
  }
  if (!milliseconds) return Raise(milliseconds.error());
  return PyFloat_FromDouble(*milliseconds);
}

PyMethodDef kMethods[] = {{"record", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Record)), METH_VARARGS | METH_KEYWORDS,
                           "record(stream=0): marks this point of the stream."},
                          {"synchronize", Synchronize, METH_NOARGS, "Waits until the device has reached it."},
                          {"query", Query, METH_NOARGS, "Whether the device has reached it."},
                          {"elapsed_ms", ElapsedMs, METH_O, "elapsed_ms(since): milliseconds from that Event to this; waits."},
                          {nullptr, nullptr, 0, nullptr}};
PyType_Slot kSlots[] = {{Py_tp_new, reinterpret_cast<void*>(New)},
                        {Py_tp_dealloc, reinterpret_cast<void*>(Dealloc)},
                        {Py_tp_methods, kMethods},
                        {Py_tp_doc, const_cast<char*>("Event(device=0, *, kind=None): a point in a stream's work.")},
                        {0, nullptr}};
PyType_Spec kSpec = {"kiln._runtime.Event", sizeof(EventObject), 0, Py_TPFLAGS_DEFAULT, kSlots};

}  // namespace

bool AddEventType(PyObject* module) {
  PyObject* type = PyType_FromSpec(&kSpec);
  if (!type) return false;
  GetState().event_type = reinterpret_cast<PyTypeObject*>(type);
  return PyModule_AddObjectRef(module, "Event", type) == 0;
}

}  // namespace kiln::runtime::py
