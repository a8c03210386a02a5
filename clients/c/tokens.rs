// liboar.so from Rust with nothing but its standard library: rustc tokens.rs -L DIR -l oar && ./tokens MODEL [PROMPT]
// Prints the prompt's token ids, then the answer as it comes, by polling instead of a callback.
use std::ffi::{c_char, c_int, CStr, CString};
use std::io::Write;

#[repr(C)]
struct Event {
    struct_size: u32,
    index: i32,
    text: *const u8,
    text_length: usize, // the fields behind it are not needed here
}

extern "C" {
    fn oar_last_error() -> *const c_char;
    fn oar_model_load(path: *const c_char, options: *const u8, model: *mut u64) -> c_int;
    fn oar_model_close(model: u64) -> c_int;
    fn oar_tokenize(model: u64, text: *const c_char, length: usize, special: c_int, ids: *mut i32, capacity: usize, count: *mut usize) -> c_int;
    fn oar_generate_tokens(model: u64, ids: *const i32, count: usize, sampling: *const u8, callback: *const u8, user: *const u8, generation: *mut u64) -> c_int;
    fn oar_generation_next(generation: u64, timeout_ms: i64, event: *mut *const Event) -> c_int;
    fn oar_generation_close(generation: u64) -> c_int;
}

// The library keeps the message of the last call on this thread.
fn check(status: c_int) -> Result<(), String> {
    if status == 0 {
        return Ok(());
    }
    Err(unsafe { CStr::from_ptr(oar_last_error()) }.to_string_lossy().into_owned())
}

fn run(path: &str, prompt: &str) -> Result<(), String> {
    let path = CString::new(path).map_err(|e| e.to_string())?;
    let (mut model, mut generation, mut count) = (0u64, 0u64, 0usize);
    check(unsafe { oar_model_load(path.as_ptr(), std::ptr::null(), &mut model) })?;
    let mut ids = vec![0i32; prompt.len() + 8]; // no token is shorter than a byte; a few special ones
    check(unsafe { oar_tokenize(model, prompt.as_ptr().cast(), prompt.len(), 1, ids.as_mut_ptr(), ids.len(), &mut count) })?;
    ids.truncate(count);
    println!("{}", ids.iter().map(i32::to_string).collect::<Vec<_>>().join(" "));
    let none = std::ptr::null();
    check(unsafe { oar_generate_tokens(model, ids.as_ptr(), ids.len(), none, none, none, &mut generation) })?;
    loop {
        let mut event: *const Event = std::ptr::null();
        check(unsafe { oar_generation_next(generation, -1, &mut event) })?;
        let Some(event) = (unsafe { event.as_ref() }) else { break }; // every choice has ended
        let text = unsafe { std::slice::from_raw_parts(event.text, event.text_length) };
        std::io::stdout().write_all(text).and_then(|()| std::io::stdout().flush()).map_err(|e| e.to_string())?;
    }
    println!();
    check(unsafe { oar_generation_close(generation) })?;
    check(unsafe { oar_model_close(model) })
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let argument = |i: usize, otherwise: &'static str| arguments.get(i).map_or(otherwise, String::as_str).to_owned();
    if let Err(why) = run(&argument(1, "demo"), &argument(2, "Good morrow!")) {
        eprintln!("{why}");
        std::process::exit(1);
    }
}
