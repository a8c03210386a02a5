"""The public names of paddle.inference 3.2.2: Config (113), Predictor (10) and Tensor (9)."""
CONFIG = """
    Bfloat16 Float32 Half Int8 Precision collect_shape_range_info cpu_math_library_num_threads delete_pass
    disable_glog_info disable_gpu disable_mkldnn disable_mkldnn_fc_passes disable_onednn disable_onednn_fc_passes
    disable_onnxruntime enable_cinn enable_custom_device enable_custom_passes enable_ipu enable_low_precision_io
    enable_memory_optim enable_mkldnn enable_mkldnn_bfloat16 enable_mkldnn_int8 enable_new_executor enable_new_ir
    enable_onednn enable_onednn_bfloat16 enable_onednn_int8 enable_onnxruntime enable_openvino_engine
    enable_ort_optimization enable_profile enable_save_optim_model enable_tensorrt_dla enable_tensorrt_engine
    enable_tensorrt_explicit_quantization enable_tensorrt_inspector enable_tensorrt_memory_optim
    enable_tensorrt_varseqlen enable_tuned_tensorrt_dynamic_shape enable_use_gpu enable_xpu
    exp_disable_mixed_precision_ops exp_disable_tensorrt_dynamic_shape_ops exp_disable_tensorrt_ops
    exp_disable_tensorrt_subgraph exp_enable_mixed_precision_ops exp_enable_use_cutlass exp_sparse_conv_using_buffer
    exp_specify_tensorrt_subgraph_precision fraction_of_gpu_memory_for_pool glog_info_disabled gpu_device_id ir_optim
    load_ipu_config mark_trt_engine_outputs memory_pool_init_size_mb mkldnn_enabled mkldnn_int8_enabled model_dir
    model_from_memory new_ir_enabled onednn_enabled onednn_int8_enabled onnxruntime_enabled openvino_engine_enabled
    params_file pass_builder prog_file set_bfloat16_op set_cpu_math_library_num_threads set_ipu_config
    set_ipu_custom_info set_mkldnn_cache_capacity set_mkldnn_op set_model set_model_buffer set_onednn_cache_capacity
    set_onednn_op set_optim_cache_dir set_optimization_level set_params_file set_prog_file
    set_tensorrt_optimization_level set_trt_dynamic_shape_info set_xpu_config set_xpu_device_id
    shape_range_info_collected shape_range_info_path specify_input_name summary switch_ir_debug switch_ir_optim
    switch_specify_input_names switch_use_feed_fetch_ops tensorrt_dla_enabled tensorrt_dynamic_shape_enabled
    tensorrt_engine_enabled tensorrt_explicit_quantization_enabled tensorrt_inspector_enabled
    tensorrt_optimization_level tensorrt_precision_mode tensorrt_varseqlen_enabled to_native_config
    trt_allow_build_at_runtime tuned_tensorrt_dynamic_shape use_feed_fetch_ops_enabled use_gpu use_optimized_model
    use_xpu xpu_config xpu_device_id
""".split()
PREDICTOR = """
    clear_intermediate_tensor clone get_input_handle get_input_names get_output_handle get_output_names
    register_input_hook register_output_hook run try_shrink_memory
""".split()
TENSOR = """
    copy_from_cpu copy_to_cpu lod reshape set_lod shape share_external_data share_external_data_by_ptr_name type
""".split()
