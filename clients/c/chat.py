"""liboar.so from Python with nothing but the standard library: chat.py [LIBRARY [MODEL [TEXT]]]."""
import ctypes
import json
import sys


class Event(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("index", ctypes.c_int32), ("text", ctypes.POINTER(ctypes.c_char)),
                ("text_length", ctypes.c_size_t), ("tokens", ctypes.POINTER(ctypes.c_int32)),
                ("logprobs", ctypes.POINTER(ctypes.c_float)), ("token_count", ctypes.c_size_t),
                ("finish", ctypes.c_int), ("status", ctypes.c_int), ("message", ctypes.c_char_p),
                ("prompt_tokens", ctypes.c_int64), ("cached_tokens", ctypes.c_int64),
                ("completion_tokens", ctypes.c_int64), ("seconds_to_first_token", ctypes.c_double),
                ("seconds", ctypes.c_double)]


Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Event), ctypes.c_void_p)


def main():
    oar = ctypes.CDLL(sys.argv[1] if len(sys.argv) > 1 else "liboar.so.0")
    oar.oar_last_error.restype = ctypes.c_char_p
    oar.oar_model_load.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64)]
    oar.oar_model_close.argtypes = [ctypes.c_uint64]
    oar.oar_generate_chat.argtypes = [ctypes.c_uint64, ctypes.c_char_p, ctypes.c_void_p, Callback, ctypes.c_void_p,
                                      ctypes.POINTER(ctypes.c_uint64)]
    oar.oar_generation_wait.argtypes = [ctypes.c_uint64, ctypes.c_int64]
    oar.oar_generation_close.argtypes = [ctypes.c_uint64]

    def check(status):
        if status != 0:
            sys.exit(oar.oar_last_error().decode())

    model, generation, events = ctypes.c_uint64(), ctypes.c_uint64(), []
    check(oar.oar_model_load((sys.argv[2] if len(sys.argv) > 2 else "demo").encode(), None, ctypes.byref(model)))

    @Callback
    def on_event(event, user):
        piece = event.contents
        print(ctypes.string_at(piece.text, piece.text_length).decode(), end="", flush=True)
        if piece.finish:
            events.append(f"{piece.completion_tokens} tokens, the first after {piece.seconds_to_first_token:.3f} s")
        return 0

    messages = [{"role": "user", "content": sys.argv[3] if len(sys.argv) > 3 else "Good morrow!"}]
    check(oar.oar_generate_chat(model, json.dumps(messages).encode(), None, on_event, None, ctypes.byref(generation)))
    check(oar.oar_generation_wait(generation, -1))
    check(oar.oar_generation_close(generation))
    check(oar.oar_model_close(model))
    print("\n" + events[0])


if __name__ == "__main__":
    main()
