// SPDX-License-Identifier: Apache-2.0
//
// The type Launcher, the base of kiln.Kernel. A call goes straight to what its `_launch` holds: a frame of Python between them would be a
// noticeable part of a launch.
#include "clients/runtime/python/python.h"

#include <structmember.h>

#include <cstddef>

namespace kiln::runtime::py {
namespace {

struct LauncherObject {
  PyObject ob_base;
  PyObject* target;
};

PyObject*& TargetOf(PyObject* self) { return reinterpret_cast<LauncherObject*>(self)->target; }

int Traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(TargetOf(self));
  return 0;
}

int Clear(PyObject* self) {
  Py_CLEAR(TargetOf(self));
  return 0;
}

void Dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  Clear(self);
  PyObject_GC_Del(self);
  Py_DECREF(reinterpret_cast<PyObject*>(type));
}

// self._refused(refusal, args, kwargs) for the ValueError that is set.
PyObject* Refused(PyObject* self, PyObject* args, PyObject* kwargs) {
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  Ref owned_type(type), refusal(value), trace(traceback), keywords(kwargs ? Ref::Borrow(kwargs) : Ref(PyDict_New()));
  if (trace) PyException_SetTraceback(refusal.get(), trace.get());
  Ref method(PyObject_GetAttrString(self, "_refused"));
  if (!method || !keywords) return nullptr;
  return PyObject_CallFunctionObjArgs(method.get(), refusal.get(), args, keywords.get(), nullptr);
}

PyObject* Call(PyObject* self, PyObject* args, PyObject* kwargs) {
  const Ref target = Ref::Borrow(TargetOf(self));  // the call may put another in its place
  if (!target) {
    PyErr_SetString(PyExc_AttributeError, "_launch");
    return nullptr;
  }
  PyObject* result = PyObject_Call(target.get(), args, kwargs);
  return result || !PyErr_ExceptionMatches(PyExc_ValueError) ? result : Refused(self, args, kwargs);
}

PyMemberDef kMembers[] = {{"_launch", T_OBJECT_EX, offsetof(LauncherObject, target), 0, "What calls go to."}, {nullptr, 0, 0, 0, nullptr}};
PyType_Slot kSlots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(Dealloc)},
                        {Py_tp_traverse, reinterpret_cast<void*>(Traverse)},
                        {Py_tp_clear, reinterpret_cast<void*>(Clear)},
                        {Py_tp_call, reinterpret_cast<void*>(Call)},
                        {Py_tp_members, kMembers},
                        {Py_tp_doc, const_cast<char*>("launcher(*args, **kwargs) is launcher._launch(*args, **kwargs); what that refuses by a "
                                                      "ValueError goes to launcher._refused(error, args, kwargs).")},
                        {0, nullptr}};
PyType_Spec kSpec = {"kiln._runtime.Launcher", sizeof(LauncherObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, kSlots};

}  // namespace

bool AddLauncherType(PyObject* module) {
  const Ref type(PyType_FromSpec(&kSpec));
  return type && PyModule_AddObjectRef(module, "Launcher", type.get()) == 0;
}

}  // namespace kiln::runtime::py
