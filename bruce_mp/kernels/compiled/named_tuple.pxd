# The creation of named tuples.

from cpython.object cimport PyTypeObject
from cpython.ref cimport Py_INCREF, PyObject

cdef extern from "Python.h":
    object PyType_GenericAlloc(PyTypeObject *, Py_ssize_t)


cdef extern from *:
    """
    #ifdef Py_LIMITED_API /* as in memory.pxd */
    #define PyTuple_GET_ITEM PyTuple_GetItem
    #define PyTuple_GET_SIZE PyTuple_Size
    #define PyTuple_SET_ITEM PyTuple_SetItem
    #endif
    """
    Py_ssize_t PyTuple_GET_SIZE(object)
    PyObject *PyTuple_GET_ITEM(object, Py_ssize_t)
    void PyTuple_SET_ITEM(object, Py_ssize_t, object)


cdef inline object named_tuple(object cls, tuple values):
    """Return `cls(*values)` for a class of named tuples, in a third of the time of `tuple.__new__(cls, values)`."""
    cdef Py_ssize_t index, size = PyTuple_GET_SIZE(values)
    made = PyType_GenericAlloc(<PyTypeObject *>cls, size)
    for index in range(size):
        value = <object>PyTuple_GET_ITEM(values, index)
        Py_INCREF(value)  # `PyTuple_SET_ITEM` takes over a reference
        PyTuple_SET_ITEM(made, index, value)
    return made
