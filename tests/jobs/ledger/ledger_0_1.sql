-- A ledger as version 0.1 wrote it: a live run, ended ones, and two that wait.
BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0001');
CREATE TABLE attempts (
	run_id TEXT NOT NULL, 
	number INTEGER NOT NULL, 
	submission_id TEXT NOT NULL, 
	state TEXT NOT NULL, 
	gang TEXT NOT NULL, 
	cpus FLOAT NOT NULL, 
	gpus FLOAT NOT NULL, 
	resume_from TEXT, 
	created_s FLOAT NOT NULL, 
	submitted_s FLOAT, 
	ended_s FLOAT, 
	cause TEXT, 
	exit_code INTEGER, 
	message TEXT NOT NULL, 
	last_step BIGINT, 
	CONSTRAINT pk_attempts PRIMARY KEY (run_id, number), 
	CONSTRAINT fk_attempts_run_id FOREIGN KEY(run_id) REFERENCES runs (id), 
	CONSTRAINT uq_attempts_submission_id UNIQUE (submission_id)
);
INSERT INTO "attempts" VALUES('live',1,'live-a1','SUBMITTED','{"num_workers":2,"resources_per_worker":{"CPU":1.0},"extra":{"CPU":1.0}}',3.0,0.0,NULL,1767225780.0,1767225780.0,NULL,NULL,NULL,'',NULL);
INSERT INTO "attempts" VALUES('failed',1,'failed-a1','ENDED','{"num_workers":2,"resources_per_worker":{"CPU":1.0},"extra":{"CPU":1.0}}',3.0,0.0,NULL,1767225780.0,1767225780.0,1767225840.0,'USER_ERROR',2,'Job entrypoint command failed with exit code 2',NULL);
INSERT INTO "attempts" VALUES('done',1,'done-a1','ENDED','{"num_workers":2,"resources_per_worker":{"CPU":1.0},"extra":{"CPU":1.0}}',3.0,0.0,NULL,1767225780.0,1767225780.0,1767225840.0,'SUCCEEDED',0,'',NULL);
CREATE TABLE events (
	number INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	run_id TEXT NOT NULL, 
	attempt INTEGER NOT NULL, 
	at_s FLOAT NOT NULL, 
	state TEXT NOT NULL, 
	"before" TEXT, 
	cause TEXT NOT NULL, 
	text TEXT NOT NULL, 
	CONSTRAINT fk_events_run_id FOREIGN KEY(run_id) REFERENCES runs (id)
);
INSERT INTO "events" VALUES(1,'live',0,1767225600.0,'QUEUED',NULL,'submitted','submitted by ana');
INSERT INTO "events" VALUES(2,'failed',0,1767225660.0,'QUEUED',NULL,'submitted','submitted by ana');
INSERT INTO "events" VALUES(3,'done',0,1767225720.0,'QUEUED',NULL,'submitted','submitted by ana');
INSERT INTO "events" VALUES(4,'live',1,1767225780.0,'SETTING_UP','QUEUED','admitted','attempt 1 starts from the beginning');
INSERT INTO "events" VALUES(5,'live',1,1767225780.0,'SETTING_UP','SETTING_UP','ray_submitted','Ray has taken live-a1');
INSERT INTO "events" VALUES(6,'failed',1,1767225780.0,'SETTING_UP','QUEUED','admitted','attempt 1 starts from the beginning');
INSERT INTO "events" VALUES(7,'failed',1,1767225780.0,'SETTING_UP','SETTING_UP','ray_submitted','Ray has taken failed-a1');
INSERT INTO "events" VALUES(8,'done',1,1767225780.0,'SETTING_UP','QUEUED','admitted','attempt 1 starts from the beginning');
INSERT INTO "events" VALUES(9,'done',1,1767225780.0,'SETTING_UP','SETTING_UP','ray_submitted','Ray has taken done-a1');
INSERT INTO "events" VALUES(10,'failed',1,1767225840.0,'FAILED','SETTING_UP','ended','attempt 1 ended: USER_ERROR · the same again would fail again with exit code 2: Job entrypoint command failed with exit code 2 · mend it, and submit the run under another name; or, where data or cluster were mended, rayscribe resume');
INSERT INTO "events" VALUES(11,'done',1,1767225840.0,'SUCCEEDED','SETTING_UP','ended','attempt 1 ended: SUCCEEDED · succeeded');
INSERT INTO "events" VALUES(12,'queued',0,1767225900.0,'QUEUED',NULL,'submitted','submitted by ana');
INSERT INTO "events" VALUES(13,'sr-20260101-000000',0,1767225960.0,'QUEUED',NULL,'submitted','submitted by ana');
CREATE TABLE lease (
	name TEXT NOT NULL, 
	holder TEXT, 
	epoch BIGINT NOT NULL, 
	beat BIGINT NOT NULL, 
	CONSTRAINT pk_lease PRIMARY KEY (name)
);
INSERT INTO "lease" VALUES('controller',NULL,1,11);
CREATE TABLE requests (
	run_id TEXT NOT NULL, 
	spec_path TEXT NOT NULL, 
	overrides TEXT NOT NULL, 
	config TEXT NOT NULL, 
	package TEXT NOT NULL, 
	run_folder TEXT NOT NULL, 
	CONSTRAINT pk_requests PRIMARY KEY (run_id), 
	CONSTRAINT fk_requests_run_id FOREIGN KEY(run_id) REFERENCES runs (id)
);
INSERT INTO "requests" VALUES('live','specs/sr.yaml','["run.name=live","run.storage_path=null"]','{"run":{"name":"live","storage_path":null,"s3_endpoint_url":null,"resume":"auto","seed":42,"max_failures":3},"data":{"train":"${SPEECH}/train.csv","validation":"valid.csv","test":null,"demo":null,"dataset":null,"audio_column_name":"path","text_column_name":"text","do_lower_case":false,"do_remove_punctuation":false,"do_normalize_eval":true,"min_duration_s":0.1,"max_duration_s":30.0,"max_bad_fraction":0.05,"cache_dir":null,"local_cache_gb":20.0},"model":{"init":"pretrained","name_or_path":"openai/whisper-small","revision":null,"language":"Serbian","task":"transcribe","max_context_s":null,"vocab_size":1000,"d_model":128,"encoder_layers":2,"decoder_layers":1,"attention_heads":4,"ffn_dim":null,"num_mel_bins":80,"max_label_tokens":448,"dropout":null,"attention_dropout":null,"activation_dropout":null,"apply_spec_augment":false,"mask_time_prob":0.05,"mask_feature_prob":0.0},"training":{"max_steps":4000,"num_train_epochs":null,"per_device_train_batch_size":16,"global_batch_size":null,"max_batch_duration_s":null,"per_device_eval_batch_size":16,"gradient_accumulation_steps":1,"learning_rate":1e-05,"warmup_steps":0,"lr_scheduler_type":"linear","weight_decay":0.0,"max_grad_norm":1.0,"eval_steps":null,"save_steps":1000,"logging_steps":25,"shuffle_window_shards":null,"fp16":false,"bf16":false,"gradient_checkpointing":false,"generation_max_length":225,"generation_num_beams":1,"full_context_fraction":0.0,"report_to":["tensorboard"],"training_args":{"adam_epsilon":1e-07,"label_names":["a: b","it''s","$HOME"]}},"scaling":{"num_workers":2,"use_gpu":false,"resources_per_worker":{},"placement_strategy":"PACK"},"checkpoint":{"num_to_keep":3,"checkpoint_score_attribute":"eval_wer","checkpoint_score_order":"min"},"job":{"runtime_env":{"working_dir":null,"excludes":[],"pip":["jiwer==4.0.0"],"uv":null,"index_url":null,"extra_index_urls":[],"cache":true,"install":"runtime_env","setup_timeout_s":1800,"env_vars":{"BUCKET_URI":"/elsewhere","SPEECH":"/speech"},"secrets":{},"image_uri":null},"queue":"default","priority":0,"max_retries":3,"depends_on":[],"tags":["speech"],"address":null,"stop_grace_s":120}}','e333de4397f309a070ec2dec35b65bb5c475a290010b1f21e69d0aa94b24e55d','/home/service/ray_results/live');
INSERT INTO "requests" VALUES('failed','specs/sr.yaml','["run.name=failed"]','{"run":{"name":"failed","storage_path":"/mnt/runs","s3_endpoint_url":null,"resume":"auto","seed":42,"max_failures":3},"data":{"train":"${SPEECH}/train.csv","validation":"valid.csv","test":null,"demo":null,"dataset":null,"audio_column_name":"path","text_column_name":"text","do_lower_case":false,"do_remove_punctuation":false,"do_normalize_eval":true,"min_duration_s":0.1,"max_duration_s":30.0,"max_bad_fraction":0.05,"cache_dir":null,"local_cache_gb":20.0},"model":{"init":"pretrained","name_or_path":"openai/whisper-small","revision":null,"language":"Serbian","task":"transcribe","max_context_s":null,"vocab_size":1000,"d_model":128,"encoder_layers":2,"decoder_layers":1,"attention_heads":4,"ffn_dim":null,"num_mel_bins":80,"max_label_tokens":448,"dropout":null,"attention_dropout":null,"activation_dropout":null,"apply_spec_augment":false,"mask_time_prob":0.05,"mask_feature_prob":0.0},"training":{"max_steps":4000,"num_train_epochs":null,"per_device_train_batch_size":16,"global_batch_size":null,"max_batch_duration_s":null,"per_device_eval_batch_size":16,"gradient_accumulation_steps":1,"learning_rate":1e-05,"warmup_steps":0,"lr_scheduler_type":"linear","weight_decay":0.0,"max_grad_norm":1.0,"eval_steps":null,"save_steps":1000,"logging_steps":25,"shuffle_window_shards":null,"fp16":false,"bf16":false,"gradient_checkpointing":false,"generation_max_length":225,"generation_num_beams":1,"full_context_fraction":0.0,"report_to":["tensorboard"],"training_args":{"adam_epsilon":1e-07,"label_names":["a: b","it''s","$HOME"]}},"scaling":{"num_workers":2,"use_gpu":false,"resources_per_worker":{},"placement_strategy":"PACK"},"checkpoint":{"num_to_keep":3,"checkpoint_score_attribute":"eval_wer","checkpoint_score_order":"min"},"job":{"runtime_env":{"working_dir":null,"excludes":[],"pip":["jiwer==4.0.0"],"uv":null,"index_url":null,"extra_index_urls":[],"cache":true,"install":"runtime_env","setup_timeout_s":1800,"env_vars":{"BUCKET_URI":"/elsewhere","SPEECH":"/speech"},"secrets":{},"image_uri":null},"queue":"default","priority":0,"max_retries":3,"depends_on":[],"tags":["speech"],"address":null,"stop_grace_s":120}}','e333de4397f309a070ec2dec35b65bb5c475a290010b1f21e69d0aa94b24e55d','/mnt/runs/failed');
INSERT INTO "requests" VALUES('done','specs/sr.yaml','["run.name=done"]','{"run":{"name":"done","storage_path":"/mnt/runs","s3_endpoint_url":null,"resume":"auto","seed":42,"max_failures":3},"data":{"train":"${SPEECH}/train.csv","validation":"valid.csv","test":null,"demo":null,"dataset":null,"audio_column_name":"path","text_column_name":"text","do_lower_case":false,"do_remove_punctuation":false,"do_normalize_eval":true,"min_duration_s":0.1,"max_duration_s":30.0,"max_bad_fraction":0.05,"cache_dir":null,"local_cache_gb":20.0},"model":{"init":"pretrained","name_or_path":"openai/whisper-small","revision":null,"language":"Serbian","task":"transcribe","max_context_s":null,"vocab_size":1000,"d_model":128,"encoder_layers":2,"decoder_layers":1,"attention_heads":4,"ffn_dim":null,"num_mel_bins":80,"max_label_tokens":448,"dropout":null,"attention_dropout":null,"activation_dropout":null,"apply_spec_augment":false,"mask_time_prob":0.05,"mask_feature_prob":0.0},"training":{"max_steps":4000,"num_train_epochs":null,"per_device_train_batch_size":16,"global_batch_size":null,"max_batch_duration_s":null,"per_device_eval_batch_size":16,"gradient_accumulation_steps":1,"learning_rate":1e-05,"warmup_steps":0,"lr_scheduler_type":"linear","weight_decay":0.0,"max_grad_norm":1.0,"eval_steps":null,"save_steps":1000,"logging_steps":25,"shuffle_window_shards":null,"fp16":false,"bf16":false,"gradient_checkpointing":false,"generation_max_length":225,"generation_num_beams":1,"full_context_fraction":0.0,"report_to":["tensorboard"],"training_args":{"adam_epsilon":1e-07,"label_names":["a: b","it''s","$HOME"]}},"scaling":{"num_workers":2,"use_gpu":false,"resources_per_worker":{},"placement_strategy":"PACK"},"checkpoint":{"num_to_keep":3,"checkpoint_score_attribute":"eval_wer","checkpoint_score_order":"min"},"job":{"runtime_env":{"working_dir":null,"excludes":[],"pip":["jiwer==4.0.0"],"uv":null,"index_url":null,"extra_index_urls":[],"cache":true,"install":"runtime_env","setup_timeout_s":1800,"env_vars":{"BUCKET_URI":"/elsewhere","SPEECH":"/speech"},"secrets":{},"image_uri":null},"queue":"default","priority":0,"max_retries":3,"depends_on":[],"tags":["speech"],"address":null,"stop_grace_s":120}}','e333de4397f309a070ec2dec35b65bb5c475a290010b1f21e69d0aa94b24e55d','/mnt/runs/done');
INSERT INTO "requests" VALUES('queued','specs/sr.yaml','["run.name=queued","training.max_steps=7","run.seed=3","job.depends_on=[live]"]','{"run":{"name":"queued","storage_path":"/mnt/runs","s3_endpoint_url":null,"resume":"auto","seed":3,"max_failures":3},"data":{"train":"${SPEECH}/train.csv","validation":"valid.csv","test":null,"demo":null,"dataset":null,"audio_column_name":"path","text_column_name":"text","do_lower_case":false,"do_remove_punctuation":false,"do_normalize_eval":true,"min_duration_s":0.1,"max_duration_s":30.0,"max_bad_fraction":0.05,"cache_dir":null,"local_cache_gb":20.0},"model":{"init":"pretrained","name_or_path":"openai/whisper-small","revision":null,"language":"Serbian","task":"transcribe","max_context_s":null,"vocab_size":1000,"d_model":128,"encoder_layers":2,"decoder_layers":1,"attention_heads":4,"ffn_dim":null,"num_mel_bins":80,"max_label_tokens":448,"dropout":null,"attention_dropout":null,"activation_dropout":null,"apply_spec_augment":false,"mask_time_prob":0.05,"mask_feature_prob":0.0},"training":{"max_steps":7,"num_train_epochs":null,"per_device_train_batch_size":16,"global_batch_size":null,"max_batch_duration_s":null,"per_device_eval_batch_size":16,"gradient_accumulation_steps":1,"learning_rate":1e-05,"warmup_steps":0,"lr_scheduler_type":"linear","weight_decay":0.0,"max_grad_norm":1.0,"eval_steps":null,"save_steps":1000,"logging_steps":25,"shuffle_window_shards":null,"fp16":false,"bf16":false,"gradient_checkpointing":false,"generation_max_length":225,"generation_num_beams":1,"full_context_fraction":0.0,"report_to":["tensorboard"],"training_args":{"adam_epsilon":1e-07,"label_names":["a: b","it''s","$HOME"]}},"scaling":{"num_workers":2,"use_gpu":false,"resources_per_worker":{},"placement_strategy":"PACK"},"checkpoint":{"num_to_keep":3,"checkpoint_score_attribute":"eval_wer","checkpoint_score_order":"min"},"job":{"runtime_env":{"working_dir":null,"excludes":[],"pip":["jiwer==4.0.0"],"uv":null,"index_url":null,"extra_index_urls":[],"cache":true,"install":"runtime_env","setup_timeout_s":1800,"env_vars":{"BUCKET_URI":"/elsewhere","SPEECH":"/speech"},"secrets":{},"image_uri":null},"queue":"default","priority":0,"max_retries":3,"depends_on":["live"],"tags":["speech"],"address":null,"stop_grace_s":120}}','e333de4397f309a070ec2dec35b65bb5c475a290010b1f21e69d0aa94b24e55d','/mnt/runs/queued');
INSERT INTO "requests" VALUES('sr-20260101-000000','specs/sr.yaml','["run.name=null","run.storage_path=null","run.name=sr-20260101-000000"]','{"run":{"name":"sr-20260101-000000","storage_path":null,"s3_endpoint_url":null,"resume":"auto","seed":42,"max_failures":3},"data":{"train":"${SPEECH}/train.csv","validation":"valid.csv","test":null,"demo":null,"dataset":null,"audio_column_name":"path","text_column_name":"text","do_lower_case":false,"do_remove_punctuation":false,"do_normalize_eval":true,"min_duration_s":0.1,"max_duration_s":30.0,"max_bad_fraction":0.05,"cache_dir":null,"local_cache_gb":20.0},"model":{"init":"pretrained","name_or_path":"openai/whisper-small","revision":null,"language":"Serbian","task":"transcribe","max_context_s":null,"vocab_size":1000,"d_model":128,"encoder_layers":2,"decoder_layers":1,"attention_heads":4,"ffn_dim":null,"num_mel_bins":80,"max_label_tokens":448,"dropout":null,"attention_dropout":null,"activation_dropout":null,"apply_spec_augment":false,"mask_time_prob":0.05,"mask_feature_prob":0.0},"training":{"max_steps":4000,"num_train_epochs":null,"per_device_train_batch_size":16,"global_batch_size":null,"max_batch_duration_s":null,"per_device_eval_batch_size":16,"gradient_accumulation_steps":1,"learning_rate":1e-05,"warmup_steps":0,"lr_scheduler_type":"linear","weight_decay":0.0,"max_grad_norm":1.0,"eval_steps":null,"save_steps":1000,"logging_steps":25,"shuffle_window_shards":null,"fp16":false,"bf16":false,"gradient_checkpointing":false,"generation_max_length":225,"generation_num_beams":1,"full_context_fraction":0.0,"report_to":["tensorboard"],"training_args":{"adam_epsilon":1e-07,"label_names":["a: b","it''s","$HOME"]}},"scaling":{"num_workers":2,"use_gpu":false,"resources_per_worker":{},"placement_strategy":"PACK"},"checkpoint":{"num_to_keep":3,"checkpoint_score_attribute":"eval_wer","checkpoint_score_order":"min"},"job":{"runtime_env":{"working_dir":null,"excludes":[],"pip":["jiwer==4.0.0"],"uv":null,"index_url":null,"extra_index_urls":[],"cache":true,"install":"runtime_env","setup_timeout_s":1800,"env_vars":{"BUCKET_URI":"/elsewhere","SPEECH":"/speech"},"secrets":{},"image_uri":null},"queue":"default","priority":0,"max_retries":3,"depends_on":[],"tags":["speech"],"address":null,"stop_grace_s":120}}','e333de4397f309a070ec2dec35b65bb5c475a290010b1f21e69d0aa94b24e55d','/home/service/ray_results/sr-20260101-000000');
CREATE TABLE run_tags (
	run_id TEXT NOT NULL, 
	tag TEXT NOT NULL, 
	state TEXT NOT NULL, 
	submitted_s FLOAT NOT NULL, 
	CONSTRAINT pk_run_tags PRIMARY KEY (run_id, tag), 
	CONSTRAINT fk_run_tags_run_id FOREIGN KEY(run_id) REFERENCES runs (id)
);
INSERT INTO "run_tags" VALUES('live','speech','SETTING_UP',1767225600.0);
INSERT INTO "run_tags" VALUES('failed','speech','FAILED',1767225660.0);
INSERT INTO "run_tags" VALUES('done','speech','SUCCEEDED',1767225720.0);
INSERT INTO "run_tags" VALUES('queued','speech','QUEUED',1767225900.0);
INSERT INTO "run_tags" VALUES('sr-20260101-000000','speech','QUEUED',1767225960.0);
CREATE TABLE runs (
	id TEXT NOT NULL, 
	uid TEXT NOT NULL, 
	user TEXT NOT NULL, 
	queue TEXT NOT NULL, 
	priority BIGINT NOT NULL, 
	address TEXT NOT NULL, 
	gang TEXT NOT NULL, 
	tags TEXT NOT NULL, 
	depends_on TEXT NOT NULL, 
	max_retries INTEGER NOT NULL, 
	state TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	attempt INTEGER NOT NULL, 
	exit_code INTEGER, 
	submitted_s FLOAT NOT NULL, 
	queued_s FLOAT NOT NULL, 
	updated_s FLOAT NOT NULL, 
	ended_s FLOAT, 
	not_before_s FLOAT, 
	stop_requested_s FLOAT, 
	progress TEXT, 
	version BIGINT NOT NULL, 
	idempotency_key TEXT, 
	asked_sha256 TEXT NOT NULL, 
	CONSTRAINT pk_runs PRIMARY KEY (id), 
	CONSTRAINT uq_runs_user_idempotency_key UNIQUE (user, idempotency_key)
);
INSERT INTO "runs" VALUES('live','a358ff90b97d4e6185ea0d4f785e943c','ana','default',0,'http://127.0.0.1:8265','{"num_workers":2,"resources_per_worker":{"CPU":1.0},"extra":{"CPU":1.0}}','["speech"]','[]',3,'SETTING_UP','the entrypoint has started',1,NULL,1767225600.0,1767225600.0,1767225810.0,NULL,NULL,NULL,NULL,3,NULL,'4cd2d84e4be4f6309e0aee0d99686c21c5c595a7f78a24f28ff928a185e6c67a');
INSERT INTO "runs" VALUES('failed','9ad6c709dded4fbd9d68a2b0029aff0c','ana','default',0,'http://127.0.0.1:8265','{"num_workers":2,"resources_per_worker":{"CPU":1.0},"extra":{"CPU":1.0}}','["speech"]','[]',3,'FAILED','the same again would fail again with exit code 2: Job entrypoint command failed with exit code 2 · mend it, and submit the run under another name; or, where data or cluster were mended, rayscribe resume',1,2,1767225660.0,1767225660.0,1767225840.0,1767225840.0,NULL,NULL,NULL,4,NULL,'940d93e2ae8b8bf0e5048ecf90ac1ad9c4e7ce53e2696be9042302faeb8e4f35');
INSERT INTO "runs" VALUES('done','363ee2d4508349fbb11bb8fa861a7853','ana','default',0,'http://127.0.0.1:8265','{"num_workers":2,"resources_per_worker":{"CPU":1.0},"extra":{"CPU":1.0}}','["speech"]','[]',3,'SUCCEEDED','succeeded',1,0,1767225720.0,1767225720.0,1767225840.0,1767225840.0,NULL,NULL,NULL,4,NULL,'77dac28c7f24fd1120cd54e1bdc2377ee4138b089116874270e12727a5628932');
INSERT INTO "runs" VALUES('queued','c1f1168173aa4d18a892d8a635be6410','ana','default',0,'http://127.0.0.1:8265','{"num_workers":2,"resources_per_worker":{"CPU":1.0},"extra":{"CPU":1.0}}','["speech"]','["live"]',3,'QUEUED','just submitted',0,NULL,1767225900.0,1767225900.0,1767225900.0,NULL,NULL,NULL,NULL,0,'k1','40acb481525792608c149e176e67140049b08082ef2575f45d1bff23db3c74cf');
INSERT INTO "runs" VALUES('sr-20260101-000000','6a491f5e99bd4802b96509a5883d26cf','ana','default',0,'http://127.0.0.1:8265','{"num_workers":2,"resources_per_worker":{"CPU":1.0},"extra":{"CPU":1.0}}','["speech"]','[]',3,'QUEUED','just submitted',0,NULL,1767225960.0,1767225960.0,1767225960.0,NULL,NULL,NULL,NULL,0,NULL,'542b2f2ae8303f135b74050504f0d6beb50e1dd8564a4630776daa5962cde0d4');
CREATE TABLE tokens (
	name TEXT NOT NULL, 
	sha256 TEXT NOT NULL, 
	created_s FLOAT NOT NULL, 
	CONSTRAINT pk_tokens PRIMARY KEY (name), 
	CONSTRAINT uq_tokens_sha256 UNIQUE (sha256)
);
INSERT INTO "tokens" VALUES('ana','31d1b08446cfb1de4c466d42d08e147a6161b8b338feb214044af3b4dae459be',1767225600.0);
CREATE INDEX ix_runs_newest ON runs (submitted_s, id);
CREATE INDEX ix_runs_state ON runs (state, submitted_s, id);
CREATE INDEX ix_runs_user ON runs (user, state, submitted_s, id);
CREATE INDEX ix_runs_queue ON runs (queue, state, submitted_s, id);
CREATE INDEX ix_run_tags_tag ON run_tags (tag, state, submitted_s, run_id);
CREATE INDEX ix_attempts_ended ON attempts (ended_s);
CREATE INDEX ix_events_run ON events (run_id, number);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('events',13);
COMMIT;
